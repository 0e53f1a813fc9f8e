"""A skipped step is explained: the place by its name, the magnitude before, what to try. And nothing else changes."""

import copy
import pickle

import pytest
import torch
import torch.utils.checkpoint

import ampcompat
import networks
import precision
from ampcompat import amp
from ampcompat.errors import GradientOverflowError
from ampcompat.runtime.forensics import Forensics

#: What old torch itself says.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*device_type of 'cuda', but CUDA is not available"),
    pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning"),
]

#: A scale at which a gradient of 4 leaves the low dtype of O1 and O2, and one of 0.25 does not.
SCALE = 2.0**127 if precision.IS_STAND_IN else 2.0**15


class Planted(torch.nn.Module):
    """Passes its input on, and does ``spoil`` to it in one training step."""

    def __init__(self, at=None, spoil=lambda x: x + float("inf")):
        super().__init__()
        self.at, self.spoil, self.step = at, spoil, 0

    def forward(self, x):
        self.step += 1
        return self.spoil(x) if self.step - 1 == self.at else x * 1.0


class Net(torch.nn.Module):
    """Defines its layers in another order than it runs them; one of them works in place."""

    def __init__(self, planted=None):
        super().__init__()
        self.last = torch.nn.Linear(4, 2)
        self.act = torch.nn.ReLU(inplace=True)
        self.planted = planted or Planted()
        self.first = torch.nn.Linear(3, 4)

    def forward(self, x):
        return self.last(self.planted(self.act(self.first(x))))


def train(model, steps, spoil=lambda step, loss: loss, forensics=None, make=None, **options):
    """Train and return the forensics; options are those of ``amp.initialize``."""
    optimizer = (make or (lambda params: torch.optim.SGD(params, lr=2.0**-6)))(model.parameters())
    options.setdefault("verbosity", 0)
    options.setdefault("loss_scale", "dynamic")
    options.setdefault("init_scale", 8.0)
    if forensics is None:
        forensics = Forensics()
        with ampcompat.session(options.pop("opt_level", None), observers=[forensics], verbosity=options["verbosity"]):
            loop(model, optimizer, steps, spoil, options)
        return forensics
    loop(model, optimizer, steps, spoil, options)
    return forensics


def squared(step, loss):
    """Make the gradients depend on the loss."""
    return loss * loss


def loop(model, optimizer, steps, spoil, options):
    amp.initialize(model, optimizer, **options)
    for step in range(steps):
        optimizer.zero_grad()
        loss = spoil(step, model(torch.ones(2, 3)).double().mean().to(precision.HIGH))
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()


# -- the typical cases -------------------------------------------------------------------------------------------------


def test_a_layer_that_explodes_is_found_by_name(level):
    forensics = train(Net(Planted(at=3)), 5, opt_level=level)
    ((step, text),) = forensics.findings
    assert step == 3
    assert "In the forward pass inf came first from module planted" in text


@pytest.mark.parametrize("each", ["O1", "O4"])
def test_a_layer_that_explodes_is_found_with_either_backend(each, backend):
    forensics = Forensics()
    with ampcompat.session(each, backend, observers=[forensics], verbosity=0):
        model = Net(Planted(at=1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loop(model, optimizer, 2, lambda step, loss: loss, {"loss_scale": "dynamic", "init_scale": 8.0})
    assert ["module planted" in text for _, text in forensics.findings] == [True]


def test_a_nan_in_the_loss_is_not_blamed_on_a_layer(level):
    forensics = train(Net(), 4, lambda step, loss: loss * float("nan") if step == 2 else loss, opt_level=level)
    ((step, text),) = forensics.findings
    assert step == 2
    assert "The loss was nan although the outputs of all modules were finite" in text
    assert "look at the loss function" in text


def test_the_slope_of_a_root_at_zero_is_found_between_two_outputs(level):
    def distance(x):
        return x + (x - x.detach()).pow(2).sum(1, keepdim=True).sqrt()

    forensics = train(Net(Planted(1, distance)), 3, opt_level=level)
    ((step, text),) = forensics.findings
    assert step == 1
    # The two share a tensor, for act works in place; torch before 2.0 tells the gradient to both hooks at once.
    words = "The loss was finite. In the backward pass nan came first in the gradient at the output of {}, "
    assert any(words.format(name) in text for name in ("act", "first"))
    assert "one stop earlier, at the output of planted, it was finite" in text
    assert "look into the backward pass of planted" in text


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_a_scale_that_starts_too_high_is_nothing_to_worry_about(each):
    scales = dict(init_scale=SCALE, max_loss_scale=SCALE)
    forensics = train(Net(), 1, lambda step, loss: loss * 64, opt_level=each, **scales)
    ((_, text),) = forensics.findings
    assert "What to try: nothing. A dynamic scale starts high" in text


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_magnitudes_before_are_true_ones(each):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False))
    factors = [0.125, 0.25, 0.0625, 64.0]
    # d(sum of outputs * f)/dW is f * 2 (rows) * 1 (inputs), so 0.5 is the largest before the last.
    forensics = train(
        model,
        4,
        lambda step, loss: loss * 4 * factors[step],
        opt_level=each,
        init_scale=SCALE,
        max_loss_scale=SCALE,
    )
    ((step, text),) = forensics.findings
    assert step == 3
    scaled = 0.5 * SCALE
    assert "gradient of 0.weight" in text or "gradient at the output of 0" in text
    before = 0.5 if "gradient of 0.weight" in text else 0.25
    assert "its largest true magnitude before was {}, which is {} scaled".format(
        before, "{:.0f}".format(scaled * before / 0.5) if scaled < 1e6 else "{:.3g}".format(scaled * before / 0.5)
    ) in text
    assert "within {}'s".format(str(precision.LOW).partition(".")[2]) in text


def test_the_largest_output_before_is_told(level):
    def make(params):
        return torch.optim.SGD(params, lr=0.0)

    model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False), Planted(at=2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0, 4.0]] * 4))
    forensics = train(model, 3, squared, make=make, opt_level=level)
    assert "its output's largest magnitude before was 7." in forensics.findings[0][1]


def test_an_input_that_is_nan_is_named_first():
    forensics = Forensics()
    model = Net()
    with ampcompat.session("O1", observers=[forensics], verbosity=0):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer)
        with amp.scale_loss(model(torch.full((2, 3), float("nan"))).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    assert "nan was there already in the input of the whole Net" in forensics.findings[0][1]


@pytest.mark.parametrize("each", ["O1", "O2"])
def test_what_functions_between_modules_spoil_is_not_blamed_on_the_next_module(each):
    class Functional(Net):
        def forward(self, x):
            h = torch.relu(self.first(x)) + 1.0
            h = h * self.planted(torch.ones_like(h)) * (float("inf") if self.planted.step == 3 else 1.0)
            return self.last(h)

    forensics = train(Functional(), 4, squared, opt_level=each)
    ((step, text),) = forensics.findings
    assert step == 2
    assert "inf was there already in the input of last" in text
    assert "; its largest magnitude before was" in text


def test_weights_that_are_nan_are_blamed():
    model = Net()
    with torch.no_grad():
        model.last.bias[0] = float("nan")
    forensics = train(model, 1, squared, opt_level="O1")
    assert "module last" in forensics.findings[0][1]
    assert "last.bias is nan" in forensics.findings[0][1]


# -- what is printed ---------------------------------------------------------------------------------------------------


def test_the_same_cause_again_takes_one_short_line(capsys):
    train(Net(), 3, lambda step, loss: loss * float("inf"), opt_level="O1", verbosity=1)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ampcompat: step")]
    assert said[0].startswith("ampcompat: step 0 (loss scaler 0) was skipped. The loss was inf")
    assert said[1:] == [
        "ampcompat: step 1 (loss scaler 0) was skipped. As in step 0: inf in the loss, at scale 4.",
        "ampcompat: step 2 (loss scaler 0) was skipped. As in step 0: inf in the loss, at scale 2.",
    ]


@pytest.mark.parametrize("says, verbosity", [(True, 0), (False, 1)])
def test_findings_can_be_had_without_a_word(says, verbosity, capsys):
    forensics = Forensics(says=says)
    with ampcompat.session("O1", observers=[forensics], verbosity=verbosity):
        train(Net(), 2, lambda step, loss: loss * float("inf"), forensics, verbosity=verbosity)
    assert "ampcompat: step" not in capsys.readouterr().out
    assert [step for step, _ in forensics.findings] == [0, 1]


def test_a_hopeless_run_is_told_by_the_forensics(capsys):
    options = dict(max_skips=3, diagnose=True, verbosity=1, opt_level="O1")
    model = Net()
    loop(model, torch.optim.SGD(model.parameters(), lr=0.1), 4, lambda step, loss: loss * float("nan"), options)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "in a row were skipped" in line]
    assert "3 steps in a row" in line
    assert "The loss was nan although the outputs of all modules were finite. What to try: look at the loss" in line


def test_a_hopeless_run_that_raises_is_told_by_the_forensics():
    options = dict(max_skips=2, raise_on_max_skips=True, diagnose=True, verbosity=0)
    model = Net(Planted())
    model.planted.forward = lambda x: x * float("inf")
    with pytest.raises(GradientOverflowError, match="module planted"):
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, lambda step, loss: loss, options)


@pytest.mark.parametrize("each", ["O0", "O4"])
def test_a_level_that_never_skips_says_where_it_went_wrong_once(each, capsys):
    model = Net(Planted(at=2))
    options = dict(opt_level=each, diagnose=True, verbosity=1)
    loop(model, torch.optim.SGD(model.parameters(), lr=0.1), 60, lambda step, loss: loss, options)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ampcompat: step")]
    assert line.startswith("ampcompat: step 2 (loss scaler 0) went through with inf or nan: a static loss scale")
    assert "module planted" in line


# -- shapes of training ------------------------------------------------------------------------------------------------


class Generator(torch.nn.Linear):
    """One of two models."""


class Critic(torch.nn.Linear):
    """The other."""


def test_of_two_models_and_losses_the_right_one_is_named(level):
    torch.manual_seed(0)
    models = Generator(3, 3), Critic(3, 1)
    forensics = Forensics()
    with ampcompat.session(level, observers=[forensics], verbosity=0):
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
        amp.initialize(list(models), optimizers, loss_scale="dynamic", init_scale=8.0, num_losses=2)
        for step in range(3):
            for loss_id in (1, 0):
                optimizers[loss_id].zero_grad()
                fake = models[0](torch.ones(2, 3))
                fake = fake * float("inf") if (step, loss_id) == (1, 1) else fake
                loss = models[1](fake.detach() if loss_id else fake).sum()
                with amp.scale_loss(loss, optimizers[loss_id], loss_id=loss_id) as scaled_loss:
                    scaled_loss.backward()
                optimizers[loss_id].step()
    ((step, text),) = forensics.findings
    assert step == 1
    assert "inf was there already in the input of the whole Critic" in text


def test_two_optimizers_of_one_loss_hear_one_finding():
    model, forensics = Net(), Forensics()
    with ampcompat.session("O1", observers=[forensics], verbosity=0):
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.first, model.last)]
        amp.initialize(model, optimizers)
        for step in range(3):
            with amp.scale_loss(model(torch.ones(2, 3)).sum() * float("inf"), optimizers) as scaled_loss:
                scaled_loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    assert [step for step, _ in forensics.findings] == [0, 1, 2]


def test_a_loss_that_was_accumulated_without_unscaling_is_looked_at(level):
    model, forensics = Net(), Forensics()
    with ampcompat.session(level, observers=[forensics], verbosity=0):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        amp.initialize(model, optimizer, loss_scale="dynamic", init_scale=8.0)
        for step in range(2):
            optimizer.zero_grad()
            for part in range(3):
                loss = model(torch.ones(2, 3)).sum() * (float("nan") if (step, part) == (1, 0) else 1.0)
                with amp.scale_loss(loss, optimizer, delay_unscale=part < 2) as scaled_loss:
                    scaled_loss.backward()
            optimizer.step()
    ((step, text),) = forensics.findings
    assert step == 1
    assert "The loss was nan" in text


def test_a_skip_that_is_known_late_is_put_down_to_its_own_step():
    try:
        torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], fused=True)
    except (TypeError, RuntimeError) as error:
        pytest.skip("this torch has no fused optimizer for the CPU: {}".format(error))
    model, forensics = Net(), Forensics()
    with ampcompat.session("O1", observers=[forensics], verbosity=0):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        loop(model, optimizer, 8, lambda step, loss: loss * float("inf") if step == 2 else loss, {"init_scale": 8.0})
        assert forensics.findings == []
        ampcompat.current().scalers[0].loss_scale()
        ((step, text),) = forensics.findings
    assert step == 2
    assert "The loss was inf" in text


def test_a_skip_that_nobody_asked_for_is_told_when_the_session_closes():
    try:
        torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], fused=True)
    except (TypeError, RuntimeError) as error:
        pytest.skip("this torch has no fused optimizer for the CPU: {}".format(error))
    forensics = train(
        Net(),
        4,
        lambda step, loss: loss * float("inf") if step == 1 else loss,
        make=lambda params: torch.optim.Adam(params, lr=0.01, fused=True),
        opt_level="O1",
    )
    assert [step for step, _ in forensics.findings] == [1]


def test_a_pass_that_raised_leaves_no_evidence_behind():
    model, forensics = Net(), Forensics()
    with ampcompat.session("O1", observers=[forensics], verbosity=0):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        amp.initialize(model, optimizer, init_scale=8.0)
        with pytest.raises(KeyError):
            with amp.scale_loss(model(torch.ones(2, 3)).sum() * float("nan"), optimizer):
                raise KeyError
        loss = model(torch.ones(2, 3)).sum()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            (scaled_loss * float("inf")).backward()
        optimizer.step()
    assert "The loss was finite" in forensics.findings[0][1]


# -- nothing else changes ----------------------------------------------------------------------------------------------


class Checkpointed(Net):
    """Computes its first layers again in backward."""

    def forward(self, x):
        options = {} if "use_reentrant" not in _checkpoint_options() else {"use_reentrant": self.reentrant}
        inner = torch.utils.checkpoint.checkpoint(lambda x: self.act(self.first(x)), x.requires_grad_(), **options)
        return self.last(self.planted(inner))


def _checkpoint_options():
    import inspect

    return inspect.signature(torch.utils.checkpoint.checkpoint).parameters


@pytest.mark.parametrize("kind", ["plain", "checkpointed", "reentrant"])
def test_training_is_the_same_to_the_bit(level, kind):
    if kind == "checkpointed" and "use_reentrant" not in _checkpoint_options():
        pytest.skip("this torch has one kind of checkpoint only")
    weights = []
    for diagnose in (False, True):
        torch.manual_seed(0)
        model = (Net if kind == "plain" else Checkpointed)(Planted(at=2))
        model.reentrant = kind == "reentrant"
        with ampcompat.session(level, diagnose=diagnose, verbosity=0):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
            loop(model, optimizer, 5, lambda step, loss: loss, {"loss_scale": "dynamic", "init_scale": 8.0})
            weights.append(networks.weights_of(model))
    assert networks.differing(*weights) == []


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_is_heard_in_its_first_run(reentrant):
    if not reentrant and "use_reentrant" not in _checkpoint_options():
        pytest.skip("this torch has one kind of checkpoint only")
    model = Checkpointed()
    model.reentrant = reentrant
    model.act.register_forward_hook(lambda module, args, output: output * float("inf"))
    forensics = train(model, 1, opt_level="O1")
    assert "module act" in forensics.findings[0][1]


def test_closing_takes_every_hook_away(level):
    model = Net()
    with ampcompat.session(level, diagnose=True, verbosity=0):
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), 1, lambda step, loss: loss, {})
        assert all(module._forward_hooks for module in model.modules())
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_copies_and_pickles_of_a_model_are_deaf(level):
    model = Net()
    forensics = Forensics()
    with ampcompat.session(level, observers=[forensics], verbosity=0):
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), 1, lambda step, loss: loss, {})
        model.planted.spoil = None  # a lambda does not pickle
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            heard = len(forensics._listener.outputs)
            twin(torch.ones(2, 3))
            assert len(forensics._listener.outputs) == heard


def test_evaluation_is_not_listened_to():
    model = Net()
    with ampcompat.session("O1", diagnose=True, verbosity=0) as session:
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), 1, lambda step, loss: loss, {})
        heard = len(session.observers[0]._listener.outputs)
        with torch.no_grad():
            model(torch.ones(2, 3))
        assert len(session.observers[0]._listener.outputs) == heard


def test_a_model_that_came_before_diagnose_is_listened_to_as_well():
    first, second = Net(Planted(at=0)), Net()
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    amp.initialize(first, optimizer, opt_level="O1", verbosity=0)
    amp.initialize(second, opt_level="O1", verbosity=0, diagnose=True)
    with amp.scale_loss(first(torch.ones(2, 3)).sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    (forensics,) = ampcompat.current().observers
    assert "module planted of Net" in forensics.findings[0][1]
