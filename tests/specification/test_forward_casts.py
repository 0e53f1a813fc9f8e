"""Specification 2.3 and 7.6: what ``forward`` of an O2 model does to inputs and outputs, which keep their types."""

import collections
import dataclasses
import types

import pytest
import torch
from helpers.networks import initialize, settings_at, settings_of
from helpers.pairing import paired

WEIGHTS_LEVELS = ("O2", "O3", "O5")
at_weights_levels = settings_at(*WEIGHTS_LEVELS)

Point = collections.namedtuple("Point", ["x", "label"])


@dataclasses.dataclass
class Frame:
    x: torch.Tensor
    name: str = "frame"


@dataclasses.dataclass(frozen=True)
class FrozenFrame:
    x: torch.Tensor


@dataclasses.dataclass
class ModelOutput(collections.OrderedDict):
    """As in Hugging Face's library: a dataclass and OrderedDict whose items and attributes mirror each other."""

    logits: torch.Tensor = None
    hidden: tuple = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                super().__setitem__(field.name, getattr(self, field.name))

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


class Bag(collections.abc.Mapping):
    """A read-only mapping."""

    def __init__(self, content):
        self.content = dict(content)

    def __getitem__(self, key):
        return self.content[key]

    def __iter__(self):
        return iter(self.content)

    def __len__(self):
        return len(self.content)


class Batch:
    """A batch with a constructor of its own, whose ``.to`` also converts the token ids."""

    def __init__(self, vectors, ids, *, name):
        self.vectors, self.ids, self.name = vectors, ids, name

    def to(self, dtype):
        return Batch(self.vectors.to(dtype), self.ids.to(dtype), name=self.name)


class Attributes(dict):
    """A dict whose items are attributes too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Echo(torch.nn.Module):
    """Returns what it was given, and keeps it to be looked at."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, *args, **kwargs):
        self.seen = args, kwargs
        return self.answer(*args, **kwargs)

    def answer(self, value):
        return value


def get_attribute(name):
    return lambda value: getattr(value, name)


def get_item(name):
    return lambda value: value[name]


def itself(value):
    return value


CONTAINERS = {
    "tensor": (itself, itself),
    "tuple": (lambda x: (1, x), get_item(1)),
    "list": (lambda x: [x, "a"], get_item(0)),
    "dict": (lambda x: {"x": x, "n": None}, get_item("x")),
    "deque": (lambda x: collections.deque([1, x], maxlen=2), get_item(1)),
    "set": (lambda x: {x}, lambda value: next(iter(value))),
    "frozen set": (lambda x: frozenset([(x, "a")]), lambda value: next(iter(value))[0]),
    "ordered dict": (lambda x: collections.OrderedDict([("b", 1), ("x", x)]), get_item("x")),
    "default dict": (lambda x: collections.defaultdict(list, x=x), get_item("x")),
    "user dict": (lambda x: collections.UserDict(x=x), get_item("x")),
    "read-only dict": (lambda x: types.MappingProxyType({"x": x, "n": 1}), get_item("x")),
    "nested": (lambda x: [({"x": [x]},)], lambda value: value[0][0]["x"][0]),
    "namedtuple by name": (lambda x: Point(x, 3), get_attribute("x")),
    "dataclass": (lambda x: Frame(x), get_attribute("x")),
    "frozen dataclass": (lambda x: FrozenFrame(x), get_attribute("x")),
    "model output by attribute": (lambda x: ModelOutput(x), get_attribute("logits")),
    "model output by key": (lambda x: ModelOutput(x), get_item("logits")),
    "model output, nested": (lambda x: ModelOutput(x, (x, x)), lambda value: value.hidden[1]),
    "mapping": (lambda x: Bag({"x": x}), get_item("x")),
    "attribute dict": (lambda x: Attributes(x=x), get_attribute("x")),
    "batch": (lambda x: Batch(x, torch.arange(3), name="train"), get_attribute("vectors")),
    "return type": (lambda x: torch.max(x, 0), get_attribute("values")),
}


@paired("setting, container, by", settings_of(*WEIGHTS_LEVELS), CONTAINERS, ["position", "keyword"])
def test_floating_tensors_are_cast_in_and_out_and_types_are_kept(setting, container, by, session):
    build, tensor_in = CONTAINERS[container]
    model = Echo().to(setting.high)
    initialize(setting, model)
    given = build(torch.ones(3, 2, dtype=setting.high))
    output = model(given) if by == "position" else model(value=given)
    seen = model.seen[0][0] if by == "position" else model.seen[1]["value"]
    assert type(seen) is type(output) is type(given)
    assert tensor_in(seen).dtype is setting.low
    assert tensor_in(output).dtype is tensor_in(given).dtype is setting.high


@at_weights_levels
def test_token_ids_names_and_other_contents_stay(setting, session):
    model = Echo().to(setting.high)
    initialize(setting, model)
    ids = torch.tensor([2049, 4097, 65535])
    given = Batch(torch.ones(2, dtype=setting.high), ids, name="train")
    output = model(given)
    assert model.seen[0][0].ids is ids and output.ids is ids and output.name == "train"
    assert model(Point(torch.ones(1, dtype=setting.high), "cat")).label == "cat"
    assert model(collections.defaultdict(list, x=torch.ones(1)))["new"] == []


@at_weights_levels
def test_the_callers_own_containers_are_not_changed(setting, session):
    model = Echo().to(setting.high)
    initialize(setting, model)
    x = torch.ones(2, dtype=setting.high)
    contents = [
        ([x], get_item(0)),
        ({"x": x}, get_item("x")),
        (ModelOutput(x), get_attribute("logits")),
        (Frame(x), get_attribute("x")),
        (Batch(x, x, name="b"), get_attribute("vectors")),
    ]
    for given, tensor_in in contents:
        model(given)
        assert tensor_in(given) is x


@at_weights_levels
def test_gradients_flow_through_the_casts_to_the_inputs(setting, session):
    model = torch.nn.Linear(2, 1, bias=False).to(setting.high)
    model.weight.data.fill_(0.5)
    initialize(setting, model)
    x = torch.ones(1, 2, dtype=setting.high, requires_grad=True)
    model(x).sum().backward()
    assert x.grad.dtype is setting.high and torch.equal(x.grad, torch.full_like(x, 0.5))


@at_weights_levels
def test_an_object_that_only_knows_to_is_asked(setting, session):
    class Opaque:
        __slots__ = ("dtype",)

        def __init__(self, dtype=None):
            self.dtype = dtype

        def to(self, dtype):
            return Opaque(dtype)

    model = Echo().to(setting.high)
    initialize(setting, model)
    output = model(Opaque())
    assert model.seen[0][0].dtype is setting.low and output.dtype is setting.high


@at_weights_levels
@pytest.mark.parametrize("inner_first", [False, True])
def test_a_submodule_that_is_given_beside_its_model_casts_its_own_inputs_too(setting, inner_first, session):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)).to(setting.high)
    initialize(setting, [model[1], model] if inner_first else [model, model[1]])
    assert model[1](torch.ones(1, 3, dtype=setting.high)).dtype is setting.high
    assert model(torch.ones(1, 2, dtype=setting.high)).dtype is setting.high
