"""``diagnose`` explains skipped steps: the module or param by its name, its values before, what to try."""

import contextlib
import copy
import inspect
import pickle

import pytest
import torch
import torch.utils.checkpoint
from helpers import fused_optimizers, loops, networks, precision

import ampcompat
from ampcompat import amp
from ampcompat.errors import GradientOverflowError
from ampcompat.observers.skipped_steps.diagnosis import OverflowDiagnosis, find_diagnosis

#: Warnings of old torch versions.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*device_type of 'cuda', but CUDA is not available"),
    pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning"),
]

needs_fused = pytest.mark.skipif(
    fused_optimizers.why_not("Adam") is not None, reason="this torch has no fused optimizer for the CPU"
)
HAS_TWO_CHECKPOINTS = "use_reentrant" in inspect.signature(torch.utils.checkpoint.checkpoint).parameters
#: Options of ``amp.initialize`` with a scale at which these networks do not overflow by themselves.
SMALL = {"loss_scale": "dynamic", "init_scale": 8.0}
#: A scale at which a gradient of 4 overflows in the low dtype of O1 and O2, and one of 0.25 does not.
SCALE = 2.0**127 if precision.IS_STAND_IN else 2.0**15


class Corrupting(torch.nn.Module):
    """Returns its input; in one training step what ``corrupt`` makes of it."""

    def __init__(self, at=None, corrupt=lambda x: x + float("inf")):
        super().__init__()
        self.at, self.corrupt, self.step = at, corrupt, 0

    def forward(self, x):
        self.step += 1
        return self.corrupt(x) if self.step - 1 == self.at else x * 1.0


class Net(torch.nn.Module):
    """Defines its layers in another order than it runs them; one of them works in place."""

    def __init__(self, corrupting=None):
        super().__init__()
        self.last = torch.nn.Linear(4, 2)
        self.act = torch.nn.ReLU(inplace=True)
        self.corrupting = corrupting or Corrupting()
        self.first = torch.nn.Linear(3, 4)

    def forward(self, x):
        return self.last(self.corrupting(self.act(self.first(x))))


@contextlib.contextmanager
def diagnosed(level=None, **options):
    """Open a session whose skipped steps are explained; yield the ``OverflowDiagnosis``."""
    diagnosis = OverflowDiagnosis()
    with ampcompat.session(level, observers=[diagnosis], **dict({"verbosity": 0}, **options)):
        yield diagnosis


def train(model, steps, corrupt=lambda step, loss: loss, make=None, opt_level=None, verbosity=0, **options):
    """Train and return the ``OverflowDiagnosis``; options are those of ``amp.initialize``."""
    optimizer = (make or (lambda params: torch.optim.SGD(params, lr=2.0**-6)))(model.parameters())
    with diagnosed(opt_level, verbosity=verbosity) as diagnosis:
        loop(model, optimizer, steps, corrupt, dict(SMALL, verbosity=verbosity, **options))
    return diagnosis


def squared(step, loss):
    """Make the gradients depend on the loss."""
    return loss * loss


def unchanged(step, loss):
    return loss


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loop(model, optimizer, steps, corrupt, options):
    amp.initialize(model, optimizer, **options)
    for step in range(steps):
        optimizer.zero_grad()
        loops.step(corrupt(step, model(torch.ones(2, 3)).double().mean().to(precision.HIGH)), optimizer)


# -- the typical cases -------------------------------------------------------------------------------------------------


def test_a_layer_that_overflows_is_found_by_name(level):
    diagnosis = train(Net(Corrupting(at=3)), 5, opt_level=level)
    ((step, text, _),) = diagnosis.findings
    assert step == 3
    assert "In the forward pass inf came first from module corrupting" in text


@pytest.mark.parametrize("each", ["O1", "O4"])
def test_a_layer_that_overflows_is_found_with_either_backend(each, backend):
    model = Net(Corrupting(at=1))
    with diagnosed(each, backend=backend) as diagnosis:
        loop(model, sgd(model), 2, unchanged, SMALL)
    assert ["module corrupting" in text for _, text, *_ in diagnosis.findings] == [True]


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_earlier_maxima_are_unscaled(each):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False))
    factors = [0.125, 0.25, 0.0625, 64.0]
    # d(sum of outputs * f)/dW is f * 2 (rows) * 1 (inputs), so 0.5 is the largest before the last.
    scales = dict(init_scale=SCALE, max_loss_scale=SCALE)
    diagnosis = train(model, 4, lambda step, loss: loss * 4 * factors[step], opt_level=each, **scales)
    ((step, text, _),) = diagnosis.findings
    assert step == 3
    scaled = 0.5 * SCALE
    assert "gradient of 0.weight" in text or "gradient at the output of 0" in text
    before = 0.5 if "gradient of 0.weight" in text else 0.25
    assert (
        "its largest unscaled absolute value before was {}, which is {} scaled".format(
            before, f"{scaled * before / 0.5:.0f}" if scaled < 1e6 else f"{scaled * before / 0.5:.3g}"
        )
        in text
    )
    assert "within {}'s".format(str(precision.LOW).partition(".")[2]) in text


def test_the_largest_earlier_output_is_reported(level):
    def make(params):
        return torch.optim.SGD(params, lr=0.0)

    model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), Corrupting(at=2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0, 4.0]] * 4))
    diagnosis = train(model, 3, squared, make=make, opt_level=level)
    assert "its output's largest absolute value before was 7." in diagnosis.findings[0][1]


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_an_input_that_functions_made_inf_is_not_attributed_to_the_next_module(each):
    class Functional(Net):
        def forward(self, x):
            h = torch.relu(self.first(x)) + 1.0
            h = h * self.corrupting(torch.ones_like(h)) * (float("inf") if self.corrupting.step == 3 else 1.0)
            return self.last(h)

    diagnosis = train(Functional(), 4, squared, opt_level=each)
    ((step, text, _),) = diagnosis.findings
    assert step == 2
    assert "inf was there already in the input of last" in text
    assert "; its largest absolute value before was" in text


@pytest.mark.skipif(precision.IS_STAND_IN, reason="needs a low dtype of a smaller range")
def test_weights_beyond_the_range_of_half_are_not_of_an_earlier_step():
    model = Net()
    model.first.weight.data[0, 0] = 1e5
    text = train(model, 1, opt_level="O2").findings[0][1]
    assert "first.weight has inf" in text
    assert "the largest float16 (65504)" in text and "O5" in text and "an earlier step" not in text


# -- what is printed ---------------------------------------------------------------------------------------------------


def test_the_same_cause_again_is_not_printed_again(capsys):
    diagnosis = train(Net(), 3, lambda step, loss: loss * float("inf"), opt_level="O1", verbosity=1)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ampcompat: step")]
    assert lines[0].startswith("ampcompat: step 0 (loss scaler 0) was skipped. The loss was inf")
    assert len(lines) == 1
    assert diagnosis.findings[1:] == [
        (1, "As in step 0: inf in the loss.", 0),
        (2, "As in step 0: inf in the loss.", 0),
    ]


@pytest.mark.parametrize("prints, verbosity", [(True, 0), (False, 1)])
def test_findings_are_there_without_printing(prints, verbosity, capsys):
    model, diagnosis = Net(), OverflowDiagnosis(prints=prints)
    with ampcompat.session("O1", observers=[diagnosis], verbosity=verbosity):
        loop(model, sgd(model), 2, lambda step, loss: loss * float("inf"), dict(SMALL, verbosity=verbosity))
    assert "ampcompat: step" not in capsys.readouterr().out
    assert [step for step, *_ in diagnosis.findings] == [0, 1]


def test_the_skip_limit_prints_the_diagnosis(capsys):
    options = dict(max_skips=3, diagnose=True, verbosity=1, opt_level="O1")
    model = Net()
    loop(model, sgd(model), 4, lambda step, loss: loss * float("nan"), options)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "in a row were skipped" in line]
    assert "3 steps in a row" in line
    assert "The loss was nan although the outputs of all modules were finite. What to try: check the loss" in line


def test_the_skip_limit_raises_with_the_diagnosis():
    options = dict(max_skips=2, raise_on_max_skips=True, diagnose=True, verbosity=0)
    model = Net(Corrupting())
    model.corrupting.forward = lambda x: x * float("inf")
    with pytest.raises(GradientOverflowError, match="module corrupting"):
        loop(model, sgd(model), 3, unchanged, options)


@pytest.mark.parametrize("each", ["O0", "O4"])
def test_a_level_that_never_skips_reports_its_first_overflow_once(each, capsys):
    model = Net(Corrupting(at=2))
    options = dict(opt_level=each, diagnose=True, verbosity=1)
    loop(model, sgd(model), 60, unchanged, options)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ampcompat: step")]
    assert line.startswith("ampcompat: step 2 (loss scaler 0) was not skipped despite inf or nan: a static loss scale")
    assert "module corrupting" in line


# -- shapes of training ------------------------------------------------------------------------------------------------


class Generator(torch.nn.Linear):
    """One of two models."""


class Critic(torch.nn.Linear):
    """The other."""


def test_of_two_models_and_losses_the_right_one_is_named(level):
    torch.manual_seed(0)
    models = Generator(3, 3), Critic(3, 1)
    with diagnosed(level) as diagnosis:
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        amp.initialize(list(models), optimizers, loss_scale="dynamic", init_scale=8.0, num_losses=2)
        for step in range(3):
            for loss_id in (1, 0):
                optimizers[loss_id].zero_grad()
                fake = models[0](torch.ones(2, 3))
                fake = fake * float("inf") if (step, loss_id) == (1, 1) else fake
                loss = models[1](fake.detach() if loss_id else fake).sum()
                loops.step(loss, optimizers[loss_id], loss_id=loss_id)
    ((step, text, _),) = diagnosis.findings
    assert step == 1
    assert "inf was there already in the input of the whole Critic" in text


def test_two_optimizers_of_one_loss_have_one_finding():
    model = Net()
    with diagnosed("O1") as diagnosis:
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.first, model.last)]
        amp.initialize(model, optimizers)
        for _ in range(3):
            loops.backward(model(torch.ones(2, 3)).sum() * float("inf"), optimizers)
            for optimizer in optimizers:
                optimizer.step()
    assert [step for step, *_ in diagnosis.findings] == [0, 1, 2]


def test_losses_that_were_accumulated_without_unscaling_are_checked(level):
    model = Net()
    optimizer = sgd(model)
    with diagnosed(level) as diagnosis:
        amp.initialize(model, optimizer, **SMALL)
        for step in range(2):
            optimizer.zero_grad()
            for part in range(3):
                loss = model(torch.ones(2, 3)).sum() * (float("nan") if (step, part) == (1, 0) else 1.0)
                loops.backward(loss, optimizer, delay_unscale=part < 2)
            optimizer.step()
    ((step, text, _),) = diagnosis.findings
    assert step == 1
    assert "The loss was nan" in text


@needs_fused
def test_a_skip_that_is_known_late_has_the_number_of_its_step():
    model = Net()
    with diagnosed("O1") as diagnosis:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        loop(model, optimizer, 8, lambda step, loss: loss * float("inf") if step == 2 else loss, {"init_scale": 8.0})
        assert diagnosis.findings == []
        ampcompat.current().scalers[0].loss_scale()
        ((step, text, _),) = diagnosis.findings
    assert step == 2
    assert "The loss was inf" in text


@needs_fused
def test_a_skip_that_was_not_read_is_reported_when_the_session_closes():
    diagnosis = train(
        Net(),
        4,
        lambda step, loss: loss * float("inf") if step == 1 else loss,
        make=lambda params: torch.optim.Adam(params, lr=0.01, fused=True),
        opt_level="O1",
    )
    assert [step for step, *_ in diagnosis.findings] == [1]


def test_a_pass_that_raised_leaves_no_record():
    model = Net()
    optimizer = sgd(model)
    with diagnosed("O1") as diagnosis:
        amp.initialize(model, optimizer, init_scale=8.0)
        with pytest.raises(KeyError):
            with amp.scale_loss(model(torch.ones(2, 3)).sum() * float("nan"), optimizer):
                raise KeyError
        loss = model(torch.ones(2, 3)).sum()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            (scaled_loss * float("inf")).backward()
        optimizer.step()
    assert "The loss was finite" in diagnosis.findings[0][1]


# -- training is unchanged --------------------------------------------------------------------------------------------


class Checkpointed(Net):
    """Computes its first layers again in backward."""

    def forward(self, x):
        options = {"use_reentrant": self.reentrant} if HAS_TWO_CHECKPOINTS else {}
        inner = torch.utils.checkpoint.checkpoint(lambda x: self.act(self.first(x)), x.requires_grad_(), **options)
        return self.last(self.corrupting(inner))


@pytest.mark.parametrize("kind", ["plain", "checkpointed", "reentrant"])
def test_training_is_the_same_to_the_bit(level, kind):
    if kind == "checkpointed" and not HAS_TWO_CHECKPOINTS:
        pytest.skip("this torch has one kind of checkpoint only")
    weights = []
    for diagnose in (False, True):
        torch.manual_seed(0)
        model = (Net if kind == "plain" else Checkpointed)(Corrupting(at=2))
        model.reentrant = kind == "reentrant"
        with ampcompat.session(level, diagnose=diagnose, verbosity=0):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
            loop(model, optimizer, 5, unchanged, SMALL)
            weights.append(networks.weights_of(model))
    assert networks.differing(*weights) == []


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_is_recorded_in_its_forward_pass(reentrant):
    if not reentrant and not HAS_TWO_CHECKPOINTS:
        pytest.skip("this torch has one kind of checkpoint only")
    model = Checkpointed()
    model.reentrant = reentrant
    model.act.register_forward_hook(lambda module, args, output: output * float("inf"))
    diagnosis = train(model, 1, opt_level="O1")
    assert "module act" in diagnosis.findings[0][1]


def test_copies_and_pickles_of_a_model_are_not_recorded(level):
    model = Net()
    with diagnosed(level) as diagnosis:
        loop(model, sgd(model), 1, unchanged, {})
        model.corrupting.corrupt = None  # a lambda does not pickle
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            count = len(diagnosis._hooks.outputs)
            twin(torch.ones(2, 3))
            assert len(diagnosis._hooks.outputs) == count


def test_evaluation_is_not_recorded():
    model = Net()
    with ampcompat.session("O1", diagnose=True, verbosity=0) as session:
        loop(model, sgd(model), 1, unchanged, {})
        hooks = find_diagnosis(session)._hooks
        count = len(hooks.outputs)
        with torch.no_grad():
            model(torch.ones(2, 3))
        assert len(hooks.outputs) == count


def test_a_model_from_before_diagnose_gets_hooks_too():
    first, second = Net(Corrupting(at=0)), Net()
    optimizer = sgd(first)
    amp.initialize(first, optimizer, opt_level="O1", verbosity=0)
    amp.initialize(second, opt_level="O1", verbosity=0, diagnose=True)
    loops.step(first(torch.ones(2, 3)).sum(), optimizer)
    diagnosis = find_diagnosis(ampcompat.current())
    assert "module corrupting of Net" in diagnosis.findings[0][1]
