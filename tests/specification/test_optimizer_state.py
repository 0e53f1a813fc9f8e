"""``optimizer.state`` is read and written by the params of the model at every level."""

import copy
import pickle
import sys
from collections import OrderedDict, defaultdict

import pytest
import torch
from helpers.networks import each_setting, initialize, session_of, settings_at

from ampcompat import amp

with_masters = settings_at("O2", "O5", stored=True)


def made(setting, make=torch.optim.Adam, **options):
    """Return an initialized model of one weight and one bias, and its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to(setting.high)
    return initialize(setting, model, make(model.parameters(), lr=0.01, **options))


def step(model, optimizer):
    """Train one step on fixed inputs."""
    optimizer.zero_grad()
    inputs = torch.linspace(-1, 1, 12).reshape(3, 4).to(model.state_dict()["weight"].dtype)
    loss = model(inputs).pow(2).mean()
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()


def saved_state(optimizer):
    """Return what is saved of each param, in their order, whatever the keys of this torch are."""
    saved = optimizer.state_dict()
    keys = [key for group in saved["param_groups"] for key in group["params"]]
    return [saved["state"][key] for key in keys if key in saved["state"]]


@each_setting
def test_state_of_a_param_is_that_of_its_step(setting, session):
    model, optimizer = made(setting)
    assert model.weight not in optimizer.state
    step(model, optimizer)
    for param in model.parameters():
        state = optimizer.state[param]
        assert param in optimizer.state
        assert float(state["step"]) == 1
        assert state["exp_avg"].dtype is (setting.low if setting.level == "O3" else setting.high)
        assert state["exp_avg"].abs().sum() > 0
        assert optimizer.state.get(param) is optimizer.state.setdefault(param, {}) is state
    assert len(optimizer.state) == 2
    assert [list(entry) for entry in optimizer.state.values()] == [list(state)] * 2
    assert len(saved_state(optimizer)) == 2


@each_setting
def test_what_is_written_to_the_state_of_a_param_is_saved(setting, session):
    model, optimizer = made(setting, torch.optim.SGD)
    optimizer.state[model.weight]["before"] = 1
    step(model, optimizer)
    optimizer.state[model.bias] = {"after": 2}
    optimizer.state.update({model.bias: {"after": 3}})
    before, after = saved_state(optimizer)
    assert before["before"] == 1 and after == {"after": 3}
    assert optimizer.state.pop(model.bias) == {"after": 3}
    del optimizer.state[model.weight]
    assert model.weight not in optimizer.state and model.bias not in optimizer.state
    assert optimizer.state.pop(model.bias, None) is optimizer.state.get(model.bias) is None
    with pytest.raises(KeyError):
        optimizer.state.pop(model.bias)


@with_masters
def test_state_is_read_by_params_after_it_was_loaded_and_copied(setting, session):
    model, optimizer = made(setting)
    step(model, optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert float(optimizer.state[model.weight]["step"]) == 1
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    step(twin, twin_optimizer)
    assert float(twin_optimizer.state[twin.weight]["step"]) == 2
    assert float(optimizer.state[model.weight]["step"]) == 1
    assert model.weight not in twin_optimizer.state or twin_optimizer.state[model.weight] == {}
    copied = optimizer.state.copy()
    assert copied[model.weight] is optimizer.state[model.weight]


@with_masters
@pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning")  # of torch 1.4 and 1.5
def test_state_of_a_pickled_optimizer_is_read_by_params(setting, session):
    model, optimizer = made(setting)
    step(model, optimizer)
    assert type(pickle.loads(pickle.dumps(optimizer.state))) is defaultdict
    twin, twin_optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    step(twin, twin_optimizer)
    assert float(twin_optimizer.state[twin.weight]["step"]) == 2
    assert len(saved_state(twin_optimizer)) == 2


@with_masters
def test_state_is_made_again_by_its_type_as_a_default_dict_is(setting, session):
    model, optimizer = made(setting)
    step(model, optimizer)
    state = optimizer.state
    again = type(state)(state.default_factory, OrderedDict(state.items()))
    assert type(state)() == {} and again == state and again["new"] == {}
    del again["new"]
    optimizer.state = again
    optimizer.zero_grad()
    assert len(optimizer.state) == 2 and optimizer.state[model.weight] is state[model.weight]
    step(model, optimizer)
    assert float(optimizer.state[model.weight]["step"]) == 2 and len(saved_state(optimizer)) == 2


@each_setting
def test_trees_contain_the_state(setting, session):
    trees = getattr(torch.utils, "_pytree", None)
    if not hasattr(trees, "register_pytree_node"):
        pytest.skip("this torch lets no class be registered")
    model, optimizer = made(setting)
    step(model, optimizer)
    before = [value.clone() for value in optimizer.state[model.weight].values()]
    doubled = trees.tree_map(lambda value: value * 2, optimizer.state)
    assert all(map(torch.equal, trees.tree_leaves(doubled)[: len(before)], [value * 2 for value in before]))
    optimizer.state = doubled
    step(model, optimizer)
    assert float(optimizer.state[model.weight]["step"]) == 3


@pytest.mark.skipif(sys.version_info < (3, 9), reason="dicts have | since Python 3.9")
@with_masters
def test_unions_with_the_state_are_read_by_params(setting, session):
    model, optimizer = made(setting)
    step(model, optimizer)
    mine = {model.bias: {"mine": 1}}
    union = optimizer.state | mine
    assert len(union) == 2
    assert union[model.bias] == {"mine": 1} and "mine" not in optimizer.state[model.bias]
    assert union[model.weight] is optimizer.state[model.weight]
    optimizer.state |= mine
    assert [list(state) for state in saved_state(optimizer)][1] == ["mine"] and len(optimizer.state) == 2


class Forgetful(torch.optim.Adam):
    """Adam that replaces its state at every step."""

    def step(self, closure=None):
        self.state = defaultdict(dict)
        super().step(closure)


@with_masters
def test_state_is_read_by_params_where_an_optimizer_or_a_script_has_replaced_it(setting, session):
    if setting.stored:
        pytest.skip("an optimizer that forgets its state is not stepped chunk by chunk")
    model, optimizer = made(setting, Forgetful)
    for _ in range(2):
        step(model, optimizer)
        assert float(optimizer.state[model.weight]["step"]) == 1
    optimizer.state = defaultdict(dict)
    optimizer.state[model.weight]["mine"] = 1
    optimizer.zero_grad()
    assert len(optimizer.state) == 1 and saved_state(optimizer) == [{"mine": 1}]


class Around(torch.optim.Optimizer):
    """An optimizer around another one, with the groups and the state of that."""

    def __init__(self, params, lr):
        self.inner = torch.optim.Adam(params, lr=lr)
        self.defaults, self.param_groups, self.state = self.inner.defaults, self.inner.param_groups, self.inner.state

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad()

    def step(self, closure=None):
        self.inner.step(closure)


@settings_at("O0", "O2", "O5")
def test_an_optimizer_and_the_one_that_it_wraps_keep_one_state(setting):
    with session_of(setting):
        model, optimizer = made(setting, Around)
        step(model, optimizer)
        assert optimizer.state is optimizer.inner.state
        assert float(optimizer.state[model.weight]["step"]) == 1
    assert optimizer.state is optimizer.inner.state
    assert float(optimizer.state[model.weight]["step"]) == 1


@with_masters
def test_params_are_the_keys_after_the_session(setting):
    with session_of(setting):
        model, optimizer = made(setting)
        step(model, optimizer)
        optimizer.state[model.weight]["mine"] = 1
    assert type(optimizer.state) is defaultdict
    assert set(map(id, optimizer.state)) == set(map(id, model.parameters()))
    assert optimizer.state[model.weight]["mine"] == 1


@with_masters
def test_params_added_later_have_their_own_state(setting, session):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).to(setting.high)
    optimizer = torch.optim.Adam(model[0].parameters(), lr=0.01)
    initialize(setting, model, optimizer)
    optimizer.add_param_group({"params": list(model[1].parameters())})
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.ones(3, 4, dtype=setting.high)).pow(2).mean(), optimizer) as scaled:
        scaled.backward()
    optimizer.step()
    assert all(float(optimizer.state[param]["step"]) == 1 for param in model.parameters())
