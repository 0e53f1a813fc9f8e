"""``store_param_remainders=True``: masters are stored between steps, and every bit is that of O5 without it."""

import gc
import io

import pytest
import torch
from helpers import half_kernels, loops
from helpers.nested import same

import ampcompat
from ampcompat import amp
from ampcompat.apex import optimizers as fused
from ampcompat.engine.masters import remainder_chunk, remainder_master
from ampcompat.engine.masters.remainder_master import StoredMaster
from ampcompat.engine.optimizers.optimizer_record import record_of
from ampcompat.errors import AmpError
from ampcompat.support.torch_compat import features

if half_kernels.stand_in() or not features.is_version_within(oldest=remainder_master.OLDEST):
    pytest.skip("this torch has no bfloat16 arithmetic, or cannot store masters", allow_module_level=True)


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    """Let the small networks of these tests have more than one chunk."""
    monkeypatch.setattr(remainder_chunk, "FEWEST", 40)


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 9),
        torch.nn.Tanh(),
        torch.nn.Linear(9, 5),
    )


def batch(index):
    torch.manual_seed(index + 1)
    return torch.randn(8, 3, 6, 6), torch.randint(5, (8,))


def backward(model, optimizer, index, factor=1.0):
    x, classes = batch(index)
    loss = torch.nn.functional.cross_entropy(model(x).float(), classes) * factor
    loops.backward(loss, optimizer)


def steps(model, optimizer, indices):
    """Train on these batches."""
    for index in indices:
        optimizer.zero_grad()
        backward(model, optimizer, index)
        optimizer.step()


def initialize(make_optimizer, stored, **options):
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    if stored:
        options["store_param_remainders"] = True
    return amp.initialize(model, optimizer, opt_level="O5", verbosity=0, **options)


def nothing(model, optimizer, index):
    """Do nothing between a backward pass and its step."""


def result(model, optimizer):
    """Return the weights, the masters and the optimizer's state."""
    masters = [param.detach().clone() for param in amp.master_params(optimizer)]
    return [param.detach().clone() for param in model.parameters()], masters, optimizer.state_dict()


def train(make_optimizer, stored, steps=5, between=nothing, passes=1, after=nothing, **options):
    """Train in a session of its own; return ``result``, and the weights after it."""
    with ampcompat.session():
        model, optimizer = initialize(make_optimizer, stored, **options)
        for index in range(steps):
            optimizer.zero_grad()
            for number in range(passes):
                backward(model, optimizer, 10 * index + number)
            between(model, optimizer, index)
            optimizer.step()
            after(model, optimizer, index)
        if stored and after is nothing:
            assert are_stored(optimizer)
        found = result(model, optimizer)
    return found + ([param.detach().clone() for param in model.parameters()],)


def are_stored(optimizer):
    return all(type(pair.master) is StoredMaster for pair in record_of(optimizer).pairs())


def assert_same(make_optimizer, **how):
    assert same(train(make_optimizer, True, **how), train(make_optimizer, False, **how))


def adamw(params):
    return torch.optim.AdamW(params, lr=0.01)


def two_groups(params):
    params = list(params)
    return torch.optim.SGD([{"params": params[:3]}, {"params": params[3:], "lr": 0.02}], lr=0.05, momentum=0.9)


OPTIMIZERS = {
    "SGD": two_groups,
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "AdamW": adamw,
    "AdamW of lists": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.01),
    "NAdam": lambda params: torch.optim.NAdam(params, lr=0.01),
    "ASGD": lambda params: torch.optim.ASGD(params, lr=0.01),
    "Rprop": lambda params: torch.optim.Rprop(params, lr=0.01),
    "FusedAdam": lambda params: fused.FusedAdam(params, lr=0.01),
    "FusedSGD": lambda params: fused.FusedSGD(params, lr=0.05, momentum=0.9),
    "FusedNovoGrad": lambda params: fused.FusedNovoGrad(params, lr=0.01),
}


def two_groups_that_count(params):
    params = list(params)
    return fused.FusedAdam([{"params": params[:3]}, {"params": params[3:], "lr": 0.02}], lr=0.01)


def clip(model, optimizer, index):
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.25)


def clip_half(model, optimizer, index):
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), 0.25)


def clip_in_groups(model, optimizer, index):
    for group in optimizer.param_groups:
        torch.nn.utils.clip_grad_value_(group["params"], 0.01)


HOW = {
    "plainly": {},
    "clipped": {"between": clip},
    "clipped in half": {"between": clip_half},
    "clipped in groups": {"between": clip_in_groups},
    "accumulated": {"passes": 3},
    "scaled": {"loss_scale": 256.0},
    "without half gradients": {"free_half_grads": True},
}


@pytest.mark.parametrize(
    "make,how", [(make, "clipped") for make in OPTIMIZERS] + [("SGD", how) for how in HOW if how != "clipped"]
)
def test_weights_masters_and_state_are_those_of_o5(make, how):
    assert_same(OPTIMIZERS[make], **HOW[how])


# -- what scripts read and write ---------------------------------------------------------------------------------------


def test_groups_that_count_steps_count_each_once():
    assert_same(two_groups_that_count)


def write_through_a_kept_alias(model, optimizer, index):
    if index == 0:
        model.kept = optimizer.param_groups[0]["params"][0].data
    model.kept.mul_(0.5)


def test_an_alias_of_a_master_that_a_script_keeps_writes_to_it():
    assert_same(adamw, after=write_through_a_kept_alias)


def test_a_write_that_nothing_sees_changes_a_master_by_half_a_step_of_the_half_weight_at_most():
    def write(model, optimizer, index):
        with torch.no_grad():
            torch.mul(model[3].weight.detach(), 1.5, out=model[3].weight.detach())

    def run(stored):
        with ampcompat.session():
            model, optimizer = initialize(adamw, stored)
            backward(model, optimizer, 0)
            optimizer.step()
            write(model, optimizer, 0)
            return model.state_dict()["3.weight"]

    found, expected = run(True), run(False)
    assert bool(((found - expected).abs() <= expected.abs() * torch.finfo(torch.bfloat16).eps / 2).all())


def test_reading_a_gradient_restores_no_values_and_reading_a_value_restores_them_until_the_next_step():
    with ampcompat.session():
        model, optimizer = initialize(adamw, True)
        backward(model, optimizer, 0)
        master = optimizer.param_groups[0]["params"][-2]
        assert type(master) is StoredMaster and master.shape == (5, 9) and master.requires_grad
        assert master.grad.dtype is torch.float32 and type(master) is StoredMaster
        with torch.inference_mode():
            assert float(master.sum()) != 0.0
        assert type(master) is torch.Tensor and type(optimizer.param_groups[0]["params"][0]) is StoredMaster
        optimizer.step()
        assert are_stored(optimizer)


def test_masters_keep_their_values_when_their_optimizer_is_gone():
    with ampcompat.session() as session:
        model, optimizer = initialize(adamw, True)
        backward(model, optimizer, 0)
        optimizer.step()
        expected = model.state_dict()
        del optimizer
        gc.collect()
        assert same(model.state_dict(), expected)
        assert type(session.masters.find(model[3].weight)) is StoredMaster
        assert float(session.masters.find(model[3].weight).sum()) == float(expected["3.weight"].sum())


# -- checkpoints, copies, groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("writes,reads", [(True, True), (True, False), (False, True)])
def test_resumes_bit_for_bit_with_and_without_stored_masters(writes, reads):
    with ampcompat.session():
        model, optimizer = initialize(adamw, writes)
        steps(model, optimizer, range(2))
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict(), amp.state_dict()], file)
    file.seek(0)
    with ampcompat.session():
        model, optimizer = initialize(adamw, reads)
        for part, state in zip((model, optimizer, amp), torch.load(file)):
            part.load_state_dict(state)
        backward(model, optimizer, 2)
        assert are_stored(optimizer) is reads  # before the first step already
        optimizer.step()
        steps(model, optimizer, [3])
        found = result(model, optimizer)
    with ampcompat.session():
        model, optimizer = initialize(adamw, False)
        steps(model, optimizer, range(4))
        assert same(found, result(model, optimizer))


def test_an_added_param_group_is_stored_too():
    def run(stored):
        with ampcompat.session():
            model = make_model()
            optimizer = torch.optim.Adam(model[:4].parameters(), lr=0.01)
            options = {"store_param_remainders": True} if stored else {}
            amp.initialize(model, optimizer, opt_level="O5", verbosity=0, **options)
            steps(model, optimizer, range(2))
            optimizer.add_param_group({"params": model[5].parameters(), "lr": 0.1})
            steps(model, optimizer, range(2, 4))
            assert are_stored(optimizer) is stored
            return result(model, optimizer)

    assert same(run(True), run(False))


def test_between_steps_adam_takes_twelve_bytes_per_param():
    with ampcompat.session():
        torch.manual_seed(0)
        model = torch.nn.Linear(256, 256, bias=False)
        optimizer = adamw(model.parameters())
        amp.initialize(model, optimizer, opt_level="O5", verbosity=0, store_param_remainders=True)

        def step():
            loops.step(model(torch.ones(1, 256)).float().sum(), optimizer)
            optimizer.zero_grad()

        report = ampcompat.memory_report(model, optimizer, step)
        (chunk,) = record_of(optimizer).masters.chunks
        stored = sum(each.numel() * each.element_size() for each in chunk.stored_memory())
    assert 2 * 256**2 <= stored <= 2.01 * 256**2
    assert report.at_peak.masters == pytest.approx(4 * 256**2, rel=0.01)  # it is the only chunk


# -- what cannot work --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O4"])
def test_other_levels_refuse_it(level):
    model = make_model()
    with pytest.raises(AmpError, match=f"makes no sense with opt_level {level}"):
        amp.initialize(model, adamw(model.parameters()), opt_level=level, store_param_remainders=True)


def test_a_session_asks_for_it_and_another_level_of_the_command_line_drops_it(monkeypatch):
    with ampcompat.session(store_param_remainders=True):
        model, optimizer = initialize(adamw, False)
        backward(model, optimizer, 0)
        assert are_stored(optimizer)
    with ampcompat.session(opt_level="O2"):
        initialize(adamw, True)
    monkeypatch.setenv("AMPCOMPAT_STORE_PARAM_REMAINDERS", "1")
    with ampcompat.session():
        model, optimizer = initialize(adamw, False)
        backward(model, optimizer, 0)
        assert are_stored(optimizer)


def test_an_older_torch_is_named(monkeypatch):
    monkeypatch.setattr(features, "version", lambda: "1.11.0")
    with pytest.raises(AmpError, match=r"needs torch 1.12 or later; this is torch 1.11"):
        initialize(adamw, True)


def test_it_is_a_bool():
    with pytest.raises(AmpError, match="store_param_remainders must be True or False, not 'yes'"):
        initialize(adamw, False, **{"store_param_remainders": "yes"})
