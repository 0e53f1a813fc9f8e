"""Every backend on every pair of dtypes that it can serve here, and a way to open one."""

import contextlib
import warnings
from typing import NamedTuple

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ampcompat.diagnostics.selftest.conformance import AGREES, compare_all
from ampcompat.engine.casting import BACKENDS, choose
from ampcompat.engine.op_table import expansion
from ampcompat.errors import AmpValueError
from ampcompat.opt_levels import BFLOAT16, HALF, STAND_IN
from ampcompat.support.patching import PatchStack
from ampcompat.support.torch_compat import features

PAIRS = {"float16": HALF, "bfloat16": BFLOAT16, "stand-in": STAND_IN}
FACTS = features.read()
ROWS = expansion.rows()  # made once: it takes as long as opening a backend


def _works(name, pair):
    """Return whether a backend can serve a pair here, with kernels to compute in."""
    try:
        choose(FACTS, name, pair)
        a = torch.ones(2, 2, dtype=pair.low)
        x = (a @ a + a).requires_grad_()
        (x.relu().exp() + x.tanh()).sum().backward()
    except (AmpValueError, RuntimeError):  # torch before 2.0 or so has almost no half kernels on the CPU
        return False
    return True


class Setting(NamedTuple):
    """A backend and a pair of dtypes, by their names."""

    backend: str
    pair: str

    @property
    def low(self):
        return PAIRS[self.pair].low

    @property
    def high(self):
        return PAIRS[self.pair].high


SETTINGS = [Setting(name, pair) for name in BACKENDS for pair in PAIRS if _works(name, PAIRS[pair])]
NATIVE = [setting for setting in SETTINGS if setting[0] == "native"]
NO_NATIVE = pytest.param(None, marks=pytest.mark.skip(reason="this torch has no autocast for the CPU"))


def setting_id(setting):
    return "-".join(setting) if isinstance(setting, tuple) else str(setting)


each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=setting_id)
each_native = pytest.mark.parametrize("setting", NATIVE or [NO_NATIVE], ids=setting_id)


@contextlib.contextmanager
def opened(setting, registrations=(), lists=None, devices=("cpu",), is_regional=False, **options):
    """Open the backend of a setting, by default as a session does with a model on the CPU; yield it."""
    name, pair = setting
    rows = expansion.merge(ROWS, lists, registrations)
    backend = BACKENDS[name](PAIRS[pair], rows, **options)
    backend.set_devices(devices)
    with PatchStack() as patches:
        backend.open(patches, is_regional)
        yield backend


def forward(backend):
    """Return the context in which an initialized model runs its ``forward``."""
    return backend.entered() or contextlib.nullcontext()


def call_checkpoint(function, reentrant, *args):
    """Checkpoint in one of the two forms; older torch has one, without an argument to select it."""
    try:
        return checkpoint(function, *args, use_reentrant=reentrant)
    except (TypeError, ValueError):
        if not reentrant:
            pytest.skip(f"torch {torch.__version__} has only reentrant checkpoints")
        return checkpoint(function, *args)


def outcomes_of(setting, table, device, reason_to_leave_out, call=lambda function, *args: function(*args)):
    """Compare every form of every row of a table with the backend of a setting; print how many agree.

    Args:
        table: what ``conformance.functions`` returns, or a part of it.
        device: a ``Device`` of ``sample_arguments``.
        reason_to_leave_out: exception -> why the form cannot be called here, or None.
        call: function, arguments -> what the function returns, called wherever the casts are to be.
    """
    with opened(setting, devices=[device.name]) as backend, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on deprecated names
        outcomes = call(compare_all, backend, table, PAIRS[setting[1]], device, reason_to_leave_out)
    agree, left_out = outcomes.counts[AGREES], outcomes.left_out
    print(f"{setting_id(setting)} on {device.name}: {agree} forms agree, {len(left_out)} cannot be called: {left_out}")
    return outcomes
