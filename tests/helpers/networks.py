"""Settings of amp (level, backend, dtypes), small networks, and a float64 reference written by hand.

The ``Product`` network and its inputs are chosen so that every rounding is known: inputs, rates and scales are powers
of two, so that a float64 loop which rounds the weights where the level does must agree with amp to the last bit.
"""

import contextlib
import os
from typing import Any, NamedTuple

import pytest
import torch

import ampcompat
from ampcompat import amp
from ampcompat.engine import casting
from ampcompat.engine.masters import remainder_master
from ampcompat.errors import AmpValueError
from ampcompat.opt_levels import BFLOAT16, HALF, STAND_IN, level_named
from ampcompat.support.torch_compat import features
from helpers import half_kernels, loops


class Setting(NamedTuple):
    """One way to run amp."""

    level: str
    backend: str
    pair: Any
    stored: bool = False  # whether masters are stored between steps

    @property
    def low(self):
        return self.pair.low

    @property
    def high(self):
        return self.pair.high

    @property
    def policy(self):
        return level_named(self.level, self.pair)

    @property
    def casts_functions(self):
        return self.level in ("O1", "O4")

    @property
    def casts_weights(self):
        return self.level in ("O2", "O3", "O5")

    @property
    def has_masters(self):
        return self.level in ("O2", "O5")

    def rounds_weights(self, tensor):
        """Return a float64 tensor rounded to the level's arithmetic."""
        return tensor if self.level == "O0" else tensor.to(self.low).double()

    def rounds_state(self, tensor):
        """Return a float64 tensor as the level keeps it between iterations."""
        return tensor.to(self.low).double() if self.level == "O3" else tensor.to(self.high).double()


def _missing(setting):
    """Say what this torch lacks for a setting, or return None."""
    try:
        casting.choose(features.read(), setting.backend, setting.pair)
    except AmpValueError as error:
        return str(error) if setting.casts_functions else None
    return None


def _lacks_arithmetic(dtype):
    return None if half_kernels.trains_in(dtype) else f"this torch cannot train in {dtype} on a CPU"


def _param(level, backend, pair, stored=False):
    setting = Setting(level, backend, pair, stored)
    lack = _missing(setting) or (_lacks_arithmetic(pair.low) if level != "O0" else None)
    if stored and not features.is_version_within(oldest=remainder_master.OLDEST):
        lack = "this torch cannot store masters"
    name = "-".join(
        [level] + [backend] * setting.casts_functions + ["standin"] * (pair is STAND_IN) + ["stored"] * stored
    )
    return pytest.param(setting, id=name, marks=[pytest.mark.skip(reason=lack)] if lack else [])


_PAIR_OF = {"O0": HALF, "O1": HALF, "O2": HALF, "O3": HALF, "O4": BFLOAT16, "O5": BFLOAT16}
REAL = [
    _param(level, backend, pair)
    for level, pair in _PAIR_OF.items()
    for backend in (("native", "patched") if level in ("O1", "O4") else ("auto",))
]
#: O5 with ``store_param_remainders=True``.
STORED = [_param("O5", "auto", BFLOAT16, stored=True)]
STANDING_IN = [_param("O1", "patched", STAND_IN), _param("O2", "auto", STAND_IN), _param("O3", "auto", STAND_IN)]

SETTINGS = REAL + STANDING_IN  # for tests that pair them with other axes
#: Where torch computes in half on a CPU, float32 and float64 stand in for it in the paired tests only.
_EACH = SETTINGS if half_kernels.stand_in() else REAL

each_setting = pytest.mark.parametrize("setting", _EACH)
each_setting_and_stored = pytest.mark.parametrize("setting", _EACH + STORED)


def settings_of(*levels):
    """Return all settings at these levels, as params for tests that pair them with other axes."""
    return [param for param in SETTINGS if param.values[0].level in levels]


def settings_at(*levels, stored=False):
    """Return a mark: the settings at these levels only, and O5 with stored masters if ``stored``."""
    chosen = [param for param in _EACH if param.values[0].level in levels]
    return pytest.mark.parametrize("setting", chosen + STORED * stored)


@contextlib.contextmanager
def session_of(setting, verbosity=0):
    """Open a session of a setting; the level and options of ``amp.initialize`` apply."""
    pair = setting.pair if setting.pair is STAND_IN else None
    with _own_dtypes(), ampcompat.session(backend=setting.backend, dtypes=pair, verbosity=verbosity) as session:
        yield session


@contextlib.contextmanager
def _own_dtypes():
    """Use the setting's dtypes instead of the replacement pair for half that other tests use."""
    stand_in = os.environ.pop("AMPCOMPAT_DTYPES", None)
    try:
        yield
    finally:
        if stand_in is not None:
            os.environ["AMPCOMPAT_DTYPES"] = stand_in


def initialize(setting, models, optimizers=None, **options):
    """Call ``amp.initialize`` at the setting's level."""
    if setting.stored and optimizers is not None:
        options.setdefault("store_param_remainders", True)
    return amp.initialize(models, optimizers, opt_level=setting.level, **options)


# -- networks ----------------------------------------------------------------------------------------------------------


def make_network(setting=None, seed=0):
    """Return a small network with a batch norm, in the setting's high dtype."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    return model if setting is None else model.to(setting.high)


def make_batch(setting=None, seed=1, size=5):
    """Return (inputs, class indices)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 6, generator=generator)
    return x if setting is None else x.to(setting.high), torch.randint(0, 3, (size,), generator=generator)


def train_step(model, optimizer, batch, loss_id=0):
    """Do one ordinary iteration and return the loss as a float."""
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    loops.step(loss, optimizer, loss_id=loss_id)
    return loss.item()


def begin(setting, rate=0.125, momentum=0.0, **options):
    """Initialize a small network and an SGD at a loss scale of 8, if no other is asked for; return both."""
    model = make_network(setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    initialize(setting, model, optimizer, **dict({"loss_scale": 8.0}, **options))
    return model, optimizer


def weights_of(model):
    """Return copies of a model's params and buffers by name, in the dtype that they have."""
    return {name: tensor.detach().clone() for name, tensor in _named_tensors(model)}


def _named_tensors(model):
    return list(model.named_parameters()) + list(model.named_buffers())


def differing(first, second):
    """Return the names under which two dicts of tensors differ by a bit, a dtype or a shape."""
    if first.keys() != second.keys():
        return sorted(first.keys() ^ second.keys())
    return [
        name
        for name, tensor in first.items()
        if tensor.dtype is not second[name].dtype or not torch.equal(tensor, second[name])
    ]


def holds_nonzero(tensor):
    """Return whether any element is not 0; ``Tensor.any`` takes booleans only on torch before 1.7."""
    return bool((tensor.detach() != 0).any())


class Product(torch.nn.Module):
    """``f(x)[i] = x[i] * a[i] * b[i]``, by way of two matrix products, so that every level rounds both weights."""

    def __init__(self, start):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor([start, start + 0.25]))
        self.b = torch.nn.Parameter(torch.tensor([start + 0.5, start - 0.25]))

    def forward(self, x):
        ones = torch.eye(2, device=x.device).to(x.dtype)  # torch 1.12 makes none in bfloat16
        return torch.mv(ones * x, self.a) * torch.mv(ones, self.b)


#: Rounding a, b to a low dtype and these products are all that is inexact in a step of ``Product``. Losses need a
#: factor of 2**-3 at most: scaled by 2**16 they must fit into float16.
RATE, MOMENTUM = 2.0**-2, 2.0**-1
INPUT = torch.tensor([1.0, -0.5])
FACTOR = 2.0**-4  # of a loss


class ProductReference:
    """SGD with momentum on a ``Product``, in float64, with the setting's roundings written out."""

    def __init__(self, setting, model):
        self.setting = setting
        self.a, self.b = model.a.detach().double().clone(), model.b.detach().double().clone()
        self.momenta = {}
        self.zero_grad()

    def zero_grad(self):
        """Forget the gradients."""
        self.grads = {"a": torch.zeros_like(self.a), "b": torch.zeros_like(self.b)}

    def backward(self, factor):
        """Add the gradients of ``factor * f(x).sum()``."""
        x = INPUT.double()
        self.grads["a"] = self.grads["a"] + factor * x * self.setting.rounds_weights(self.b)
        self.grads["b"] = self.grads["b"] + factor * x * self.setting.rounds_weights(self.a)

    def step(self):
        """Update as torch's SGD does."""
        rounded = self.setting.rounds_state
        for name, grad in self.grads.items():
            grad = rounded(grad)
            if name in self.momenta:
                grad = rounded(rounded(self.momenta[name] * MOMENTUM) + grad)
            self.momenta[name] = grad
            setattr(self, name, rounded(getattr(self, name) - RATE * grad))


class Lab:
    """A ``Product`` under amp, and the same training by hand."""

    def __init__(self, setting, loss_scale="dynamic", **options):
        self.model = Product(1.0).to(setting.high)
        self.reference = ProductReference(setting, self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.x = INPUT.to(setting.high)
        initialize(setting, self.model, self.optimizer, loss_scale=loss_scale, **options)

    def loss(self, factor=FACTOR):
        return factor * self.model(self.x).sum()

    def block(self, factor=FACTOR, **options):
        """Return a block of ``scale_loss``."""
        return amp.scale_loss(self.loss(factor), self.optimizer, **options)

    def plain(self, factor=FACTOR):
        """Do a backward pass without ``scale_loss``."""
        self.loss(factor).backward()
        self.reference.backward(factor)

    def backward(self, factor=FACTOR, inject=None, **options):
        """Do one within ``scale_loss``, in which a value may be put into a gradient."""
        with self.block(factor, **options) as scaled_loss:
            scaled_loss.backward()
            if inject is not None:
                self.model.a.grad[0] = inject
        self.reference.backward(factor)

    def weights(self):
        """Return copies of what is trained."""
        return [param.detach().clone() for param in amp.master_params(self.optimizer)]

    def check_gradients(self):
        """Compare the gradients that the optimizer will use, bit for bit."""
        found = [param.grad.double() for param in amp.master_params(self.optimizer)]
        assert all(map(torch.equal, found, self.reference.grads.values()))

    def check(self, tolerance=0.0):
        """Compare the weights; the groups are not asked for by ``amp.master_params``, which would refresh them."""
        expected = [self.reference.a, self.reference.b]
        (group,) = self.optimizer.param_groups
        assert all((p.detach().double() - w).abs().max() <= tolerance for p, w in zip(group["params"], expected))
        if not tolerance:
            assert all(torch.equal(p.detach(), w.to(p.dtype)) for p, w in zip(self.model.parameters(), expected))

    def step(self, tolerance=0.0):
        """Step, compare, and clear the gradients."""
        self.optimizer.step()
        self.reference.step()
        self.check(tolerance)
        self.optimizer.zero_grad()
        self.reference.zero_grad()


class ScaleReference:
    """The automaton of the dynamic loss scale, of Specification 3.5."""

    def __init__(self, window=2000, smallest=None, largest=2.0**24):
        self.window, self.smallest, self.largest = window, smallest, largest
        self.scale, self.unskipped = min(2.0**16, largest), 0

    def update(self, overflowed):
        """Take in one pass."""
        if overflowed:
            self.scale = max(self.scale / 2, self.smallest or 0.0)
            self.unskipped = 0
        else:
            self.unskipped += 1
        if self.unskipped == self.window:
            self.scale = min(self.scale * 2, self.largest)
            self.unskipped = 0
