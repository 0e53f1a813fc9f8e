"""Floating tensors are cast wherever they are nested; everything else, and every container's type, is kept."""

import collections
import types

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from ampcompat.support.containers import cast_floating, map_items

LOW, HIGH = torch.float16, torch.float32
Point = collections.namedtuple("Point", "x label")


class ModelOutput(collections.OrderedDict):
    """Items that are attributes too, like the outputs of Hugging Face's models."""

    def __init__(self, **items):
        super().__init__()
        for name, value in items.items():
            self[name] = value

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __reduce__(self):
        return _rebuild_output, (dict(self),)


def _rebuild_output(items):
    return ModelOutput(**items)


class Batch:
    """Its own ``.to`` would convert the token ids as well."""

    def __init__(self, tokens, mask, **extra):
        self.tokens, self.mask, self.extra = tokens, mask, extra

    def to(self, dtype):
        raise AssertionError("would convert tokens")


def half(*shape):
    return torch.ones(shape or (2,), dtype=LOW)


def tokens():
    return torch.tensor([1, 2, 60001])


def test_a_complex_tensor_passes():
    try:
        passing = torch.zeros(2, dtype=torch.complex64)
    except (AttributeError, RuntimeError):
        pytest.skip("this torch has no complex tensors")
    assert cast_floating(passing, HIGH) is passing


@pytest.mark.parametrize("value", [None, 1, 2.5, "text", b"bytes", {1, 2}, object(), range(3), torch.float16, Point])
def test_what_holds_no_tensor_is_the_same_object(value):
    assert cast_floating(value, HIGH) is value


def test_an_array_passes():
    numpy = pytest.importorskip("numpy", reason="arrays need numpy")
    array = numpy.ones(3, dtype=numpy.float16)
    assert cast_floating(array, HIGH) is array


def test_packed_sequences_stay_usable():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    cast = cast_floating(packed, torch.float64)
    assert isinstance(cast, torch.nn.utils.rnn.PackedSequence) and cast.data.dtype is torch.float64
    padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(cast)
    assert padded.shape == (3, 2, 2) and lengths.tolist() == [3, 1]


def test_keys_of_a_read_only_mapping_need_not_be_strings():
    cast = cast_floating(types.MappingProxyType({0: half(), 1: "text"}), HIGH)
    assert isinstance(cast, types.MappingProxyType) and cast[0].dtype is HIGH and cast[1] == "text"


class Pair(list):
    """A list with a constructor and an attribute of its own."""

    def __init__(self, first, second):
        super().__init__([first, second])
        self.name = "pair"


@pytest.mark.parametrize(
    "make",
    [
        lambda first, second: Pair(first, second),
        lambda first, second: Point(first, second),
        lambda first, second: collections.defaultdict(list, {0: first, 1: second}),
        lambda first, second: ModelOutput(a=first, b=second),
    ],
    ids=["own list", "namedtuple", "defaultdict", "own dict"],
)
def test_arguments_of_functions_keep_the_type_and_the_attributes_of_containers(make):
    ids = tokens()
    original = make(half(), ids)
    cast = map_items(lambda item: item.float() if item.is_floating_point() else item, original)
    first, second = cast.values() if isinstance(cast, dict) else cast
    assert type(cast) is type(original) and first.dtype is HIGH and second is ids
    for name in ("name", "default_factory"):
        assert getattr(cast, name, None) == getattr(original, name, None)
    assert getattr(cast, "a", first) is first and getattr(original, "a", half()).dtype is LOW
    assert map_items(lambda item: item, original) is original


class Window(collections.deque):
    """A deque with a constructor of its own and an attribute."""

    def __init__(self, items=(), maxlen=4):
        super().__init__(items, maxlen)
        self.name = "window"


class Ids(frozenset):
    """A frozenset with an attribute."""

    name = "class"


@pytest.mark.parametrize(
    "make",
    [collections.deque, lambda items: collections.deque(items, 3), Window, set, frozenset, Ids],
    ids=["deque", "bounded deque", "own deque", "set", "frozenset", "own frozenset"],
)
def test_deques_and_sets_keep_their_type_and_length(make):
    ids = tokens()
    original = make([half(), ids, "text"])
    if not isinstance(original, (collections.deque, set)) and hasattr(original, "__dict__"):
        original.name = "mine"
    cast = cast_floating(original, HIGH)
    assert type(cast) is type(original) and len(cast) == 3
    assert {getattr(item, "dtype", item) for item in cast} == {HIGH, torch.int64, "text"}
    assert any(item is ids for item in cast)
    assert getattr(cast, "maxlen", None) == getattr(original, "maxlen", None)
    assert getattr(cast, "name", None) == getattr(original, "name", None)
    assert {getattr(item, "dtype", item) for item in original} == {LOW, torch.int64, "text"}
    nothing = make([ids, "text"])
    assert cast_floating(nothing, HIGH) is nothing


def test_a_deque_that_holds_itself_ends():
    queue = collections.deque([half()])
    queue.append(queue)
    assert cast_floating(queue, HIGH)[0].dtype is HIGH


def test_an_object_that_has_any_attribute_is_no_dataclass():
    class Proxy:  # as torch.fx traces with
        def __init__(self, name):
            self.name = name

        def __getattr__(self, name):
            return Proxy(name)

        def __call__(self):
            return self

    value = Proxy("input")
    assert cast_floating(value, torch.float64) is value


def test_a_cycle_ends():
    batch = Batch(tokens(), half())
    batch.self = batch
    assert cast_floating(batch, HIGH).mask.dtype is HIGH


def test_one_tensor_in_two_places_is_still_one():
    shared = [half()]
    cast = cast_floating((shared, shared), HIGH)
    assert cast[0] is cast[1]


leaves = st.sampled_from(["half", "float", "ids", "flags", "text", "none"])


def containers(inner):
    """Return a strategy for containers of ``inner``. Hypothesis reads this source, and a lambda's is easily misread."""
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        inner.map(lambda item: Point(item, "label")),
    )


trees = st.recursive(leaves, containers, max_leaves=8)
VALUES = {"half": half, "float": lambda: torch.ones(2), "ids": tokens, "flags": lambda: torch.tensor([True])}
VALUES.update(text=lambda: "half", none=lambda: None)


def grown(tree):
    """Convert a tree of strings to one of values."""
    if isinstance(tree, str):
        return VALUES.get(tree, lambda: tree)()
    if isinstance(tree, dict):
        return {key: grown(item) for key, item in tree.items()}
    if isinstance(tree, Point):
        return Point(grown(tree.x), tree.label)
    return type(tree)(grown(item) for item in tree)


def check(before, after):
    """Compare a value and its cast, by the definition."""
    assert type(after) is type(before)
    if isinstance(before, torch.Tensor):
        assert after.dtype is (HIGH if before.is_floating_point() else before.dtype)
        assert torch.equal(after, before.to(after.dtype))
    elif isinstance(before, dict):
        assert list(before) == list(after)
        for key in before:
            check(before[key], after[key])
    elif isinstance(before, (tuple, list)):
        assert len(before) == len(after)
        for pair in zip(before, after):
            check(*pair)
    else:
        assert after is before


def narrow_leaves(value):
    if isinstance(value, torch.Tensor):
        return value.dtype is LOW
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return any(narrow_leaves(item) for item in items)


@hypothesis.given(trees)
@hypothesis.settings(deadline=None, max_examples=60)
def test_any_nesting_is_cast_leaf_by_leaf_and_the_same_object_where_nothing_is(tree):
    value = grown(tree)
    cast = cast_floating(value, HIGH)
    check(value, cast)
    if not narrow_leaves(value):
        assert cast is value
