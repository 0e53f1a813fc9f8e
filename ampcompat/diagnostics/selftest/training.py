"""Training checks: the loss of every level compared with float32, and skipped steps."""

import functools
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F

from ... import amp
from ...engine import casting
from ...errors import AmpError
from ...opt_levels import OPT_LEVELS
from ...sessions import session
from ...support.torch_compat import features
from ...support.torch_compat.torch_names import dtype_name
from .results import FAILED, NOT_RUN, CheckResult

CLASSES = 4


class Classifier(torch.nn.Sequential):
    """A convolutional network for images of one channel."""

    def __init__(self):
        layers = []
        for inputs, outputs in ((1, 8), (8, 16), (16, 32)):
            layers += [
                torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
                torch.nn.BatchNorm2d(outputs),
                torch.nn.ReLU(),
            ]
        layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, CLASSES)]
        super().__init__(*layers)


class Perceptron(torch.nn.Sequential):
    """Linear layers and layer norm: the order of its sums does not change between runs."""

    def __init__(self):
        super().__init__(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))


def images(device, step, count=32, size=16):
    """Return (images, classes): each class is a different pattern with noise. The same for the same step."""
    patterns = torch.randn(CLASSES, 1, size, size, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(step + 1)
    classes = torch.randint(0, CLASSES, (count,), generator=generator)
    noise = torch.randn(count, 1, size, size, generator=generator)
    return (patterns[classes] + 2.0 * noise).to(device), classes.to(device)


def features_and_classes(device, step, count=32):
    """Return (inputs of 16 features, classes)."""
    generator = torch.Generator().manual_seed(step + 1)
    inputs = torch.randn(count, 16, generator=generator)
    return inputs.to(device), inputs[:, :CLASSES].argmax(1).to(device)


#: Low enough that no step is skipped while a dynamic scale adapts.
INIT_SCALE = 2.0**8
REPORT = "Run it again with --json FILE and attach the file to a report."
#: How far any of the first losses may be from float32's, as a share of their mean; rounding errors grow later.
TOLERANCES = {torch.float16: 0.02, torch.bfloat16: 0.05}
COMPARED = 20


class Setting(NamedTuple):
    """An opt level and, if functions cast at that level, a backend."""

    level: str
    backend: Optional[str] = None

    def __str__(self):
        return " ".join(filter(None, self))

    @property
    def low(self):
        """The level's low dtype."""
        return OPT_LEVELS[self.level].dtypes.low

    def opened(self, **options):
        """Return a context manager: a session with this setting."""
        return session(self.level, backend=self.backend, verbosity=0, **options)

    def lack(self, device):
        """Return why it cannot run here, or None."""
        if self.level == "O0":
            return None
        try:
            if self.backend is not None:
                casting.choose(features.read(), self.backend, OPT_LEVELS[self.level].dtypes)
        except AmpError as error:
            return str(error)
        return _lack_of_kernels(self.low, device)


@functools.lru_cache(maxsize=None)
def _lack_of_kernels(low, device):
    """Return why this torch cannot train the networks in a dtype on a device, without amp; None if it can."""
    try:
        for network, data in ((Classifier, images), (Perceptron, features_and_classes)):
            inputs, _ = data(device, 0)
            network().to(device).to(low)(inputs.to(low)).float().sum().backward()
    except (RuntimeError, TypeError) as error:
        return f"this torch cannot train in {dtype_name(low)}: {first_line(error)}"
    return None


def first_line(error):
    """Return the first line of an exception's message."""
    return str(error).strip().split("\n")[0]


SETTINGS = [
    Setting(level, backend)
    for level in OPT_LEVELS
    for backend in (("native", "patched") if OPT_LEVELS[level].patch_torch_functions else (None,))
]


def each_setting(check, settings, device, row_of):
    """Yield ``row_of(setting)`` for each setting that can run on a device, and why for those that cannot."""
    for setting in settings:
        lack = setting.lack(device)
        if lack:
            yield CheckResult(check, str(setting), NOT_RUN, lack)
            continue
        try:
            yield row_of(setting)
        except Exception as error:  # a failure of this setting; the others still run
            yield CheckResult(check, str(setting), FAILED, f"{type(error).__name__}: {first_line(error)}", REPORT)


def iterate(model, optimizer, batch, factor=1.0):
    """Do one training iteration with amp; return the loss, unread.

    Args:
        model: initialized, as is the optimizer.
        optimizer: of all the model's params.
        batch: (inputs, classes).
        factor: the loss is multiplied by this; inf makes the gradients overflow.
    """
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch[0]), batch[1]) * factor
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    return loss.detach()


# -- parity ------------------------------------------------------------------------------------------------------------


def _made(device, network=Classifier):
    torch.manual_seed(0)
    model = network().to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _float32_losses(device, steps):
    model, optimizer = _made(device)
    losses = []
    for step in range(steps):
        inputs, classes = images(device, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def _losses(setting, device, steps):
    with setting.opened():
        model, optimizer = amp.initialize(*_made(device), init_scale=INIT_SCALE)
        losses = [iterate(model, optimizer, images(device, step)) for step in range(steps)]
        return [float(loss) for loss in losses]


def check_parity(device, quick=False):
    """Yield a row for each level: does a CNN on generated images learn the same as in float32?

    Args:
        device: "cpu", "cuda", …
        quick: fewer steps.
    """
    steps = 20 if quick else 80
    plain = _float32_losses(device, steps)

    def row_of(setting):
        losses = _losses(setting, device, steps)
        first = list(zip(losses, plain))[:COMPARED]
        distance = max(abs(mine - wanted) for mine, wanted in first) * len(first) / sum(plain[:COMPARED])
        last = sum(losses[-5:]) / 5
        passed = distance <= TOLERANCES[setting.low] and last < 0.5 * losses[0]
        found = (
            f"loss {losses[0]:.3f} to {last:.3f} in {steps} steps; within {distance:.1%} of float32's for {len(first)}"
        )
        advice = f"Do not train at {setting} here; compare with another backend and level. {REPORT}"
        return CheckResult.of("training", str(setting), passed, found, advice, losses=losses, float32=plain)

    return each_setting("training", SETTINGS, device, row_of)


# -- overflow ----------------------------------------------------------------------------------------------------------


def _scale():
    return amp.state_dict()["loss_scaler0"]["loss_scale"]


def check_overflow(device, quick=False):
    """Yield a row for each level with a dynamic scale: is a step skipped once if its gradients overflow?"""
    interval = 3

    def row_of(setting):
        with setting.opened():
            model, optimizer = _made(device, Perceptron)
            amp.initialize(model, optimizer, init_scale=INIT_SCALE, growth_interval=interval)
            batch = features_and_classes(device, 0)
            iterate(model, optimizer, batch)
            before = [param.detach().clone() for param in model.parameters()]
            iterate(model, optimizer, batch, factor=float("inf"))
            scales = [INIT_SCALE, _scale()]
            kept = all(torch.equal(old, new) for old, new in zip(before, model.parameters()))
            skipped = [amp.step_was_skipped(optimizer)]
            for _ in range(interval):
                iterate(model, optimizer, batch)
                skipped.append(amp.step_was_skipped(optimizer))
            scales.append(_scale())
        passed = kept and skipped == [True] + [False] * interval
        passed = passed and scales == [INIT_SCALE, INIT_SCALE / 2, INIT_SCALE]
        found = "steps skipped: {}, weights {}, scale {:g} to {:g} to {:g}".format(
            sum(skipped), "kept" if kept else "CHANGED", *scales
        )
        return CheckResult.of("overflow", str(setting), passed, found, REPORT, scales=scales, skipped=skipped)

    levels = [each for each in SETTINGS if OPT_LEVELS[each.level].loss_scale == "dynamic"]
    return each_setting("overflow", levels, device, row_of)
