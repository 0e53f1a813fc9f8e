"""Predicted bytes against bytes counted by hand, and against what optimizers hold."""

import pytest
import torch
from helpers import networks
from helpers.networks import each_setting, initialize, session_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ampcompat.errors import AmpError
from ampcompat.tools.memory import formulas
from ampcompat.tools.memory.bytes_by_kind import format_bytes
from ampcompat.tools.memory.optimizer_state import StateSizes, same_optimizer_factory
from ampcompat.tools.memory.storages import element_size, sizes_in


def adam_of(params):
    return torch.optim.Adam(params)


def momentum_of(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def plain_of(params):
    return torch.optim.SGD(params, lr=0.1)


def count_size():
    """Return the bytes of Adam's count of steps: it is a Python number in older torch."""
    param = torch.nn.Parameter(torch.zeros(1))
    param.grad = torch.zeros(1)
    optimizer = adam_of([param])
    optimizer.step()
    return sum(sizes_in(dict(optimizer.state)).values()) - 8


# Linear(6, 8) and Linear(8, 3) hold 83 elements in 4 params, the batch norm 16 in 2, as many in buffers, and a count.
WEIGHTS, NORM = 83, 16


@each_setting
@pytest.mark.parametrize("make, moments", [(plain_of, 0), (momentum_of, 1), (adam_of, 2)])
def test_kinds_of_the_small_network_are_those_counted_by_hand(setting, make, moments):
    low, high = element_size(setting.low), element_size(setting.high)
    wide = not setting.casts_weights
    weight, norm = high if wide else low, low if setting.level == "O3" else high
    found = formulas.before_initialize(networks.make_network(), make, setting.policy)
    kinds = found.formula_by_kind
    assert kinds.parameters == kinds.gradients == WEIGHTS * weight + NORM * norm
    assert kinds.masters == (WEIGHTS * high if setting.has_masters else 0)
    state = high if wide or setting.has_masters else low
    assert kinds.optimizer == moments * (WEIGHTS * state + NORM * norm) + (6 * count_size() if moments == 2 else 0)
    assert kinds.model_buffers == NORM * norm + 8
    beyond = {kind: size for kind, size, _ in found.additions}
    assert beyond.get("gradients", 0) == (WEIGHTS * (high - low) if setting.has_masters else 0)
    assert beyond.get("casts", 0) in ((WEIGHTS * low, WEIGHTS * high) if setting.casts_functions else (0,))


@each_setting
@pytest.mark.parametrize("make", [momentum_of, adam_of])
def test_the_prediction_before_initialize_equals_that_after_it_and_what_is_held(setting, make):
    model = networks.make_network()
    before = formulas.before_initialize(model, make, setting.policy)
    with session_of(setting) as session:
        optimizer = make(model.parameters())
        initialize(setting, model, optimizer)
        after = formulas.during_training([model], [optimizer], session.policy)
        assert after.by_kind == before.by_kind
        networks.train_step(model, optimizer, networks.make_batch())
        state = sizes_in(dict(optimizer.state))
        assert sum(sizes_in(list(model.parameters())).values()) == after.formula_by_kind.parameters
        masters = [master for master in networks.amp.master_params(optimizer)]
        assert sum(state.values()) == after.formula_by_kind.optimizer
        own = {id(param) for param in model.parameters()}
        assert (
            sum(sizes_in([each for each in masters if id(each) not in own]).values()) == after.formula_by_kind.masters
        )


def test_layers_that_stay_in_float32_have_no_masters():
    policy = networks.Setting("O2", "auto", networks.HALF).policy
    found = formulas.before_initialize(networks.make_network(), plain_of, policy, ["0", torch.nn.BatchNorm1d])
    kept = 56 + NORM  # Linear(6, 8)
    assert found.formula_by_kind.parameters == 4 * kept + 2 * 27
    assert found.formula_by_kind.masters == 4 * 27


def test_frozen_params_have_no_gradients_and_no_state():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    model[0].weight.requires_grad_(False)
    kinds = formulas.before_initialize(
        model, momentum_of, networks.Setting("O0", "auto", networks.HALF).policy
    ).formula_by_kind
    assert (kinds.parameters, kinds.gradients, kinds.optimizer) == (128, 64, 64)


def test_tied_weights_are_predicted_once():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    found = formulas.before_initialize(model, momentum_of, networks.Setting("O0", "auto", networks.HALF).policy)
    assert found.num_params == 16
    assert found.formula_by_kind.parameters == found.formula_by_kind.gradients == found.formula_by_kind.optimizer == 64


def test_weights_that_functions_do_not_cast_are_not_counted_as_casts():
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    found = formulas.before_initialize(model, plain_of, networks.Setting("O4", "auto", networks.BFLOAT16).policy)
    ((kind, size, _),) = found.additions
    assert kind == "casts" and size in (2 * 10, 4 * 10)


class Gpt(torch.nn.Module):
    """Params of the shapes of GPT-2 with 1.5 billion, without memory: one element, expanded."""

    def __init__(self, width=1600, layers=48, letters=50257, context=1024):
        super().__init__()
        shapes = [(letters, width), (context, width), (width,), (width,)]
        for _ in range(layers):
            shapes += [(width,)] * 4 + [(3 * width, width), (3 * width,), (width, width), (width,)]
            shapes += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
        made = [torch.nn.Parameter(torch.zeros(1).expand(shape)) for shape in shapes]
        self.weights = torch.nn.ParameterList(made)


@pytest.mark.parametrize("each", ["O2", "O5"])
def test_gpt_2_needs_the_24_gigabytes_of_the_formula(each):
    found = formulas.before_initialize(Gpt(), adam_of, networks.Setting(each, "auto", networks.HALF).policy)
    assert found.num_params == 1557611200
    counts = 4 + 12 * 48  # params, each with its count of steps
    assert found.formula == 16 * found.num_params + counts * count_size()
    assert 24e9 < found.formula < 25e9
    assert found.total - found.formula == 2 * found.num_params


class ReadsItsSteps(torch.optim.SGD):
    """Its count of steps is a tensor on the default device, which it reads, as Adam of torch 2.6 does."""

    def step(self, closure=None):
        (param,) = self.param_groups[0]["params"]
        steps = self.state[param].setdefault("step", torch.zeros(()))
        steps += 1
        if steps.item():
            super().step(closure)


@pytest.mark.skipif(not hasattr(torch.device, "__enter__"), reason="torch.device is a context since torch 2.0")
def test_the_default_device_does_not_keep_the_optimizer_from_its_step():
    with torch.device("meta"):
        assert StateSizes(lambda params: ReadsItsSteps(params, lr=0.1)).bytes_of((3, 4), torch.float32) == 4


@pytest.mark.skipif(not hasattr(torch.nn.utils, "skip_init"), reason="modules on the meta device came with torch 1.10")
def test_a_model_on_the_meta_device_is_predicted_without_memory():
    model = torch.nn.Linear(40000, 37500, bias=False, device="meta")
    found = formulas.before_initialize(model, adam_of, networks.Setting("O2", "auto", networks.HALF).policy)
    assert round(found.formula / 1e9, 3) == 24.0
    assert [param.device.type for param in model.parameters()] == ["meta"]


# -- state -------------------------------------------------------------------------------------------------------------


def held_after_a_step(make, shape, is_sparse=False):
    param = torch.nn.Parameter(torch.ones(shape))
    param.grad = torch.ones(shape).to_sparse() if is_sparse else torch.ones(shape)
    optimizer = make([param])
    optimizer.step()
    return sum(sizes_in(dict(optimizer.state)).values())


NAMES = ["Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW"]
NAMES += ["ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]
SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@pytest.mark.parametrize("name", NAMES)
@given(shape=SHAPES)
@settings(max_examples=12, deadline=None)
def test_state_after_a_trial_step_predicts_the_state_of_any_shape(name, shape):
    kind = getattr(torch.optim, name, None)
    if kind is None:
        pytest.skip(f"this torch has no {name}")

    def make(params):
        return kind(params, lr=0.01)

    assert StateSizes(make).bytes_of(shape, torch.float32) == held_after_a_step(make, shape)


def test_state_of_optimizers_that_need_sparse_gradients_or_a_closure_is_found():
    assert StateSizes(torch.optim.SparseAdam).bytes_of((2, 3), torch.float32) == held_after_a_step(
        torch.optim.SparseAdam, (2, 3), is_sparse=True
    )
    assert (
        StateSizes(torch.optim.LBFGS).bytes_of((2, 3), torch.float32) >= 2 * 24
    )  # the direction and the last gradient


def test_options_of_an_optimizer_and_of_its_groups_count():
    first, second = torch.nn.Parameter(torch.ones(8)), torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second], "momentum": 0.0}], lr=0.1, momentum=0.9)
    sizes = [
        StateSizes(same_optimizer_factory(optimizer, group)).bytes_of((8,), torch.float32)
        for group in optimizer.param_groups
    ]
    assert sizes == [32, 0]


@pytest.mark.parametrize("make", [lambda params: torch.optim.SGD(params, lr=-1.0), lambda params: int(params)])
def test_an_optimizer_that_cannot_be_made_is_an_error(make):
    with pytest.raises(AmpError, match="could not be created from a list of params.*lambda params"):
        StateSizes(make).bytes_of((2,), torch.float32)


@pytest.mark.parametrize(
    "size, text",
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1500, "1.50 kB"), (-2 * 10**6, "-2.00 MB"), (10**13, "10000.00 GB")],
)
def test_bytes_are_formatted_in_powers_of_a_thousand(size, text):
    assert format_bytes(size) == text
