"""Specification 7.25: every call of ``initialize`` keeps its own level, loss scalers and limits, in whatever order.

Loss scales are the defaults of the levels, unless a test is about them. Losses at levels with a dynamic scale are so
small that their gradients are 0 in half without it.
"""

import copy
import functools
import gc
import itertools

import pytest
import torch
from helpers import loops
from helpers.networks import differing, make_batch, make_network, weights_of
from helpers.pairing import paired
from helpers.precision import HIGH, PAIR, low_of

import ampcompat
from ampcompat import amp, opt_levels
from ampcompat.engine import casting
from ampcompat.engine.loss_scaling.loss_scaler import LossScaler
from ampcompat.errors import AmpError, AmpValueError
from ampcompat.support.torch_compat import features

LEVELS = tuple(opt_levels.OPT_LEVELS)
DYNAMIC = ("O1", "O2")
TINY = 2.0**-20
#: How a model gets its optimizer: it is given to ``initialize``, it is passed to ``scale_loss`` only, it has none.
KINDS = ("given", "adopted", "without")
TWO_LEVELS = [
    pytest.param(pair, id="-".join(pair)) for pair in itertools.product(LEVELS, LEVELS) if set(pair) != {"O1", "O4"}
]


def backend_param(name):
    try:
        casting.choose(features.read(), name, PAIR)
    except AmpValueError as error:
        return pytest.param(name, marks=pytest.mark.skip(reason=str(error)))
    return pytest.param(name)


each_order = pytest.mark.parametrize("levels", [("O1", "O4"), ("O4", "O1")])
two_dtypes = pytest.mark.skipif(low_of("O1") is low_of("O4"), reason="one dtype stands in for half at both levels")
BACKENDS = [backend_param("native"), backend_param("patched")]


def sgd(model, level="O0"):
    """Return an optimizer whose steps are equally long at all levels, with losses of ``loss_of``."""
    return torch.optim.SGD(model.parameters(), lr=0.125 / (TINY if level in DYNAMIC else 1.0), momentum=0.5)


@pytest.fixture
def quiet():
    """A session that prints nothing."""
    with ampcompat.session(verbosity=0):
        yield


def begin(level, kind="given", seed=0, **options):
    """Initialize a network; return it, its optimizer or None, and its level."""
    model = make_network(seed=seed).to(HIGH)
    optimizer = None if kind == "without" else sgd(model, level)
    amp.initialize(model, optimizer if kind == "given" else None, opt_level=level, **options)
    return model, optimizer, level


def loss_of(model, level):
    x, target = make_batch()
    loss = torch.nn.functional.cross_entropy(model(x.to(HIGH)).to(HIGH), target)
    return loss * TINY if level in DYNAMIC else loss


def backward(loss, optimizers, overflows=False, **options):
    """Do one backward pass; return the loss scale."""
    with amp.scale_loss(loss, optimizers, **options) as scaled_loss:
        (scaled_loss * (float("inf") if overflows else 1.0)).backward()
    return float(scaled_loss.detach() / loss.detach())


def iterate(model, optimizer, level, overflows=False):
    """Do one iteration; return what can be seen of it: the loss scale, whether it was skipped, the output."""
    if optimizer is None:
        with torch.no_grad():
            return model(make_batch()[0].to(HIGH)).tolist()
    loss = loss_of(model, level)
    scale = backward(loss, optimizer, overflows and level in DYNAMIC)
    optimizer.step()
    optimizer.zero_grad()
    return scale, amp.step_was_skipped(optimizer), loss.item()


def trained(backend, calls):
    """Initialize a network per (level, kind, seed) in this order, then train them in turns; return what each did."""
    with ampcompat.session(backend=backend, verbosity=0):
        made = [begin(*call) for call in calls]
        seen = [[] for _ in calls]
        for iteration in range(4):
            for index, each in enumerate(made):
                seen[index].append(iterate(*each, overflows=iteration == 1))
        return [(what, weights_of(each[0]), masters_of(each[1])) for what, each in zip(seen, made)]


def masters_of(optimizer):
    params = [] if optimizer is None else list(amp.master_params(optimizer))
    return {str(index): param.detach().clone() for index, param in enumerate(params)}


@functools.lru_cache(maxsize=None)
def alone(backend, level, kind, seed):
    return trained(backend, [(level, kind, seed)])[0]


def own_scalers():
    """Return the scales in ``amp.state_dict()``, in its order; check its keys."""
    states = amp.state_dict()
    assert list(states) == [f"loss_scaler{index}" for index in range(len(states))]
    return [state["loss_scale"] for state in states.values()]


# -- every level beside every other ------------------------------------------------------------------------------------


@paired("levels, first_kind, second_kind, backend", TWO_LEVELS, KINDS, KINDS, BACKENDS)
def test_two_models_train_as_alone_whatever_the_order_of_initialize(levels, first_kind, second_kind, backend):
    calls = [(levels[0], first_kind, 0), (levels[1], second_kind, 1)]
    for call, found in zip(calls, trained(backend, calls)):
        expected = alone(backend, *call)
        assert found[0] == expected[0], f"the scales, the skipped steps and the losses of {call}"
        assert differing(found[1], expected[1]) == differing(found[2], expected[2]) == []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_third_call_changes_nothing_for_the_first_two(order, backend):
    calls = [(level, "given", seed) for seed, level in enumerate(["O2", "O1", "O5"])]
    calls = [calls[index] for index in order]
    for call, found in zip(calls, trained(backend, calls)):
        assert found[0] == alone(backend, *call)[0]
        assert differing(found[1], alone(backend, *call)[1]) == []


def _refusal(subject, level, other):
    low, other_low = [str(low_of(each)).replace("torch.", "") for each in (level, other)]
    return f"{subject} casts torch's functions to {low}, and this call would cast them to {other_low}: .*reset"


@each_order
@two_dtypes
def test_a_model_whose_functions_would_be_cast_to_another_dtype_is_refused_while_another_is_alive(levels, backend):
    with ampcompat.session(backend=backend, verbosity=0):
        first = begin(levels[0])
        before = iterate(*first)
        with pytest.raises(AmpError, match=_refusal(f"initialized at {levels[0]}, which", *levels)):
            begin(levels[1], seed=1)
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is low_of(levels[0])
        assert before and iterate(*first) and amp._amp_state._amp_state.opt_properties.opt_level == levels[0]
        del first
        model, optimizer, level = begin(levels[1], seed=1)
        iterate(model, optimizer, level)
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is low_of(levels[1])


@each_order
@two_dtypes
def test_amp_init_with_another_dtype_is_refused_while_a_model_is_alive_and_so_is_a_model_after_it(levels, backend):
    low, other_low = map(low_of, levels)
    with ampcompat.session(backend=backend, verbosity=0):
        first = begin(levels[0])
        amp.init(patch_type=low)._deactivate()
        with pytest.raises(AmpError, match=_refusal(f"initialized at {levels[0]}, which", *levels)):
            amp.init(patch_type=other_low)
        amp.init(patch_type=low)
        assert iterate(*first) and torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is low
        del first
        for call in (lambda: amp.init(patch_type=other_low), lambda: begin(levels[1])):
            with pytest.raises(AmpError, match=_refusal(r"amp\.init\(\)", *levels)):
                call()
        amp.init(patch_type=low)._deactivate()
        iterate(*begin(levels[1]))
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is other_low


@each_order
@two_dtypes
def test_one_level_with_two_dtypes_is_refused_by_the_names_of_these(levels, quiet):
    first = begin(levels[0])
    with pytest.raises(AmpError, match=_refusal(f"initialized at {levels[0]}, which", *levels)):
        begin(levels[0], patch_torch_functions_type=low_of(levels[1]))
    iterate(*first)


@paired(
    "levels, is_first",
    [("O2", other) for other in ("O0", "O1", "O3")]
    + [("O5", other) for other in ("O0", "O1", "O3")]
    + [(level, other) for level in ("O0", "O1", "O3", "O4") for other in ("O2", "O5")],
    [True, False],
)
def test_an_optimizer_that_comes_later_has_masters_if_its_own_models_call_has(levels, is_first, quiet):
    calls = [(levels[0], "adopted", 0), (levels[1], "given", 1)]
    made = [begin(*call) for call in (calls if is_first else reversed(calls))]
    model, optimizer, level = made[0 if is_first else 1]
    for _ in range(2):
        iterate(model, optimizer, level)
    masters = list(amp.master_params(optimizer))
    are_masters = [master is not param for master, param in zip(masters, model.parameters())]
    assert are_masters == [level in ("O2", "O5") and param.dtype is not HIGH for param in model.parameters()]
    assert sum(are_masters) == (4 if level in ("O2", "O5") else 0)
    assert level == "O3" or {master.dtype for master in masters} == {HIGH}


# -- loss scalers ------------------------------------------------------------------------------------------------------


@paired("level, other", DYNAMIC, DYNAMIC)
def test_an_overflow_lowers_the_scale_of_its_own_call_only(level, other, quiet):
    first, second = begin(level), begin(other, seed=1)
    iterate(*first, overflows=True)
    assert own_scalers() == [2.0**15, 2.0**16]
    iterate(*second, overflows=True)
    iterate(*second, overflows=True)
    assert own_scalers() == [2.0**15, 2.0**14]
    assert [iterate(*each)[0] for each in (first, second)] == [2.0**15, 2.0**14]


def test_loss_id_counts_within_the_call_of_the_optimizer(quiet):
    first, second = begin("O1", num_losses=2), begin("O2", seed=1, num_losses=3, init_scale=2.0**10)
    assert own_scalers() == [2.0**16] * 2 + [2.0**10] * 3
    for (model, optimizer, level), loss_id in ((first, 1), (second, 2)):
        backward(loss_of(model, level), optimizer, overflows=True, loss_id=loss_id)
        optimizer.step()
        assert amp.step_was_skipped(optimizer)
    assert own_scalers() == [2.0**16, 2.0**15, 2.0**10, 2.0**10, 2.0**9]


@pytest.mark.parametrize("fewer_first", [True, False])
def test_a_loss_id_that_only_the_other_call_has_is_an_error(fewer_first, quiet):
    made = [begin("O1", seed=count, num_losses=count) for count in ((1, 3) if fewer_first else (3, 1))]
    model, optimizer, level = made[0 if fewer_first else 1]
    with pytest.raises(AmpError, match="loss_id=2, and there is 1 loss scaler: pass num_losses=3"):
        amp.scale_loss(loss_of(model, level), optimizer, loss_id=2)


@pytest.mark.parametrize("levels", TWO_LEVELS)
def test_a_loss_of_two_calls_trains_the_models_of_both(levels, quiet):
    level, other = levels
    made = [begin(level, seed=0, loss_scale=128.0), begin(other, seed=1, loss_scale=128.0)]
    optimizers = [optimizer for _, optimizer, _ in made]
    for passes in (1, 2):
        for _ in range(passes):
            backward(sum(loss_of(model, each) for model, _, each in made), optimizers)
        found = [[master.grad.clone() for master in amp.master_params(optimizer)] for optimizer in optimizers]
        for (model, optimizer, each), grads in zip(made, found):
            optimizer.zero_grad()
            for _ in range(passes):
                backward(loss_of(model, each), optimizer)
            for param, grad in zip(amp.master_params(optimizer), grads):
                assert torch.allclose(param.grad.double(), grad.double(), rtol=2e-2, atol=1e-3 * TINY)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("overflow_of", [0, 1])
def test_an_overflow_of_a_loss_of_two_calls_skips_the_steps_of_both_optimizers(overflow_of, quiet):
    made = [begin("O1", seed=0), begin("O2", seed=1)]
    before = [masters_of(optimizer) for _, optimizer, _ in made]
    losses = [loss_of(model, level) for model, _, level in made]
    losses[overflow_of] = losses[overflow_of] * float("inf")
    loops.backward(sum(losses), [optimizer for _, optimizer, _ in made])
    for (_, optimizer, _), old in zip(made, before):
        optimizer.step()
        assert amp.step_was_skipped(optimizer)
        assert differing(masters_of(optimizer), old) == []


@pytest.mark.parametrize("order", [1, -1])
def test_a_call_without_optimizers_adds_no_scalers(order, quiet):
    calls = [("O2", "given"), ("O3", "without"), ("O0", "without"), ("O5", "given")][::order]
    made = [begin(level, kind) for level, kind in calls]
    assert own_scalers() == [2.0**16, 1.0][::order] and len(made) == 4


def test_folds_whose_models_and_optimizers_are_gone_leave_no_scalers(quiet):
    """A checkpoint of the fifth fold of a cross-validation has its own scaler as ``loss_scaler0``, as under Apex."""
    for fold in range(3):
        each = begin("O2", seed=fold, init_scale=2.0 ** (fold + 8))
        iterate(*each)
        gc.collect()
        assert own_scalers() == [2.0 ** (fold + 8)]
        iterate(*each, overflows=True)
        assert own_scalers() == [2.0 ** (fold + 7)]
        del each


def test_the_state_of_amp_shows_the_scalers_of_the_newest_call(quiet):
    """As in Apex: a script that sets a scale after ``initialize`` means the optimizers that it has just passed."""
    made = [begin("O1", num_losses=2), begin("O2", seed=2, loss_scale=128.0)]
    begin("O3", "without", seed=1)  # of a teacher: it trains nothing
    assert own_scalers() == [2.0**16, 2.0**16, 128.0]
    assert [scaler.loss_scale() for scaler in amp._amp_state.loss_scalers] == [128.0]
    amp._amp_state.loss_scalers[0]._loss_scale = 4.0
    assert iterate(*made[1])[0] == 4.0
    assert iterate(*made[0])[0] == 2.0**16


@pytest.mark.parametrize("is_dropped", [True, False])
def test_scalers_that_a_script_puts_in_place_are_those_of_the_newest_call(is_dropped, quiet):
    first = begin("O1", seed=0)
    if is_dropped:
        del first
    second = begin("O2", seed=1, num_losses=2)
    amp._amp_state.loss_scalers[0] = LossScaler(2.0)
    assert iterate(*second)[0] == 2.0
    amp._amp_state.loss_scalers = [LossScaler(8.0)]
    assert iterate(*second)[0] == 8.0
    assert own_scalers()[-1] == 8.0


def test_state_dict_and_load_state_dict_restore_the_scalers_of_several_calls():
    def make():
        return [
            begin("O2", num_losses=2, seed=0),
            begin("O3", "without", seed=1),
            begin("O1", seed=2, init_scale=2.0**12),
            begin("O5", seed=3),
        ]

    def run(made, iterations):
        for iteration in iterations:
            for index, each in enumerate(made):
                iterate(*each, overflows=iteration % 3 == index % 2)

    with ampcompat.session(verbosity=0):
        made = make()
        run(made, range(4))
        saved = amp.state_dict()
        kept = [(model.state_dict(), optimizer and optimizer.state_dict()) for model, optimizer, _ in made]
        kept = copy.deepcopy(kept)
        run(made, range(4, 8))
        expected = [weights_of(model) for model, _, _ in made], amp.state_dict()
    with ampcompat.session(verbosity=0):
        made = make()
        for (model, optimizer, _), (weights, state) in zip(made, kept):
            model.load_state_dict(weights)
            if optimizer is not None:
                optimizer.load_state_dict(state)
        amp.load_state_dict(saved)
        assert amp.state_dict() == saved and len(saved) == 4
        run(made, range(4, 8))
        assert [differing(weights_of(model), old) for (model, _, _), old in zip(made, expected[0])] == [[]] * 4
        assert amp.state_dict() == expected[1]


def test_a_checkpoint_of_one_call_loads_into_the_scalers_of_the_first(capsys):
    """Apex's checkpoints are of one call, and a script may initialize a second model since."""
    made = [begin("O1", num_losses=2, verbosity=1), begin("O2", seed=1, verbosity=1)]
    capsys.readouterr()
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 8.0, "unskipped": 3}})
    assert "1 loss scaler" in capsys.readouterr().out
    assert own_scalers() == [8.0, 2.0**16, 2.0**16]
    amp.load_state_dict({"loss_scaler%d" % i: {"loss_scale": 2.0**i, "unskipped": i} for i in range(3)})
    assert own_scalers() == [1.0, 2.0, 4.0] and len(made) == 2


# -- the other options of a call ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
def test_max_skips_and_raising_at_it_belong_to_their_call(order, capsys):
    options = [dict(max_skips=2), dict(max_skips=2, raise_on_max_skips=True), {}]
    with ampcompat.session():
        strict, raising, lenient = [begin("O1", seed=i, **each) for i, each in enumerate(options[::order])][::order]
        for which, lines in ((lenient, 5), (strict, 2)):
            capsys.readouterr()
            for _ in range(lines):
                iterate(*which, overflows=True)
            said = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("Gradient overflow.")]
            assert bool(said) == (which is strict), said
        with pytest.raises(FloatingPointError):
            for _ in range(5):
                iterate(*raising, overflows=True)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "options, overflows, expected",
    [
        (
            [dict(min_loss_scale=2.0**15), dict(max_loss_scale=2.0**10), dict(init_scale=2.0**4), {}],
            [True, True, True],
            [2.0**15, 2.0**7, 2.0, 2.0**13],
        ),
        (
            [dict(growth_interval=2, growth_factor=4.0), dict(backoff_factor=0.25), {}],
            [True, False, False],
            [2.0**17, 2.0**14, 2.0**15],
        ),
    ],
    ids=["bounds", "growth and backoff"],
)
def test_what_bounds_and_moves_a_scale_belongs_to_its_call(order, options, overflows, expected, quiet):
    made = [begin("O1", seed=index, **each) for index, each in enumerate(options[::order])]
    for each in overflows:
        for trained in made:
            iterate(*trained, overflows=each)
    assert own_scalers() == expected[::order]


@pytest.mark.parametrize("quiet_is_first", [True, False])
def test_verbosity_belongs_to_its_call(quiet_is_first, capsys):
    made = [begin("O1", seed=index, verbosity=v) for index, v in enumerate((0, 1) if quiet_is_first else (1, 0))]
    quiet, loud = made if quiet_is_first else reversed(made)
    for each, is_said in ((quiet, False), (loud, True), (quiet, False)):
        capsys.readouterr()
        iterate(*each, overflows=True)
        assert ("Gradient overflow." in capsys.readouterr().out) == is_said


# -- models that are not enabled, and sessions -------------------------------------------------------------------------


@paired("level, disabled_is_first, kind, backend", LEVELS, [True, False], ["given", "adopted"], BACKENDS)
def test_a_disabled_model_trains_as_without_amp_beside_an_enabled_one(level, disabled_is_first, kind, backend):
    plain_model = make_network(seed=5).to(HIGH)
    plain = sgd(plain_model)
    expected = alone(backend, level, kind, 0)
    with ampcompat.session(backend=backend, verbosity=0):
        model = make_network(seed=5).to(HIGH)
        optimizer = sgd(model)
        if disabled_is_first:
            amp.initialize(model, optimizer, enabled=False, opt_level="O3")
        each = begin(level, kind)
        if not disabled_is_first:
            amp.initialize(model, optimizer, enabled=False, opt_level="O3")
        seen = []
        for iteration in range(4):
            seen.append(iterate(*each, overflows=iteration == 1))
            loss = loss_of(model, "O0")
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                assert scaled_loss is loss
                scaled_loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert seen == expected[0] and differing(weights_of(each[0]), expected[1]) == []
        assert len(amp.state_dict()) == 1
        disabled = weights_of(model)
    for _ in range(4):
        loss_of(plain_model, "O0").backward()
        plain.step()
        plain.zero_grad()
    assert differing(disabled, weights_of(plain_model)) == []


def test_an_option_of_the_session_holds_for_every_call_at_its_own_level():
    with ampcompat.session(verbosity=0, loss_scale=128.0):
        made = [begin(level, seed=seed) for seed, level in enumerate(["O1", "O2", "O5"])]
        assert own_scalers() == [128.0] * 3
        assert [model[0].weight.dtype for model, _, _ in made] == [HIGH, low_of("O2"), low_of("O5")]
        assert [iterate(*each)[0] for each in made] == [128.0] * 3


def test_a_session_in_a_session_is_refused_and_changes_nothing_for_the_models_of_the_first(quiet):
    each = begin("O1")
    with pytest.raises(AmpError, match="open already"), ampcompat.session("O3", loss_scale=1.0):
        pass
    begin("O3", "without", seed=1)
    assert [iterate(*each)[0], iterate(*each, overflows=True)[1]] == [2.0**16, True]


def test_sessions_one_after_the_other_share_nothing():
    with ampcompat.session("O3", verbosity=0, loss_scale=4.0):
        begin("O1")
        assert own_scalers() == [4.0]
    with ampcompat.session("O1", verbosity=0):
        each = begin("O3")
        assert own_scalers() == [2.0**16]
        assert iterate(each[0], each[1], "O1", overflows=True)[1]
