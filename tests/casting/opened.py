"""Every backend on every pair of dtypes that it can serve here, and a way to open one."""

import contextlib

import pytest
import torch
import torch.utils.checkpoint

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


SETTINGS = [(name, pair) for name in BACKENDS for pair in PAIRS if _works(name, PAIRS[pair])]
NATIVE = [setting for setting in SETTINGS if setting[0] == "native"]
NO_NATIVE = pytest.param(None, marks=pytest.mark.skip(reason="this torch has no autocast for the CPU"))


def setting_id(setting):
    return "-".join(setting) if isinstance(setting, tuple) else str(setting)


each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=setting_id)
each_native = pytest.mark.parametrize("setting", NATIVE or [NO_NATIVE], ids=setting_id)


@contextlib.contextmanager
def opened(setting, registrations=(), lists=None, devices=("cpu",), **options):
    """Open the backend of a setting, by default as a session does with a model on the CPU; yield it."""
    name, pair = setting
    rows = expansion.merge(ROWS, lists, registrations)
    backend = BACKENDS[name](PAIRS[pair], rows, **options)
    backend.set_devices(devices)
    with PatchStack() as patches:
        backend.open(patches)
        yield backend


OWNERS = [
    torch,
    torch.nn.functional,
    torch.Tensor,
    torch.nn.modules.rnn,
    torch.nn.RNNBase,
    torch.autograd,
    torch.jit,
    torch.autograd.function.BackwardCFunction,
    torch.utils.checkpoint,
    torch.utils.checkpoint.CheckpointFunction,
    torch.nn.modules.rnn._VF,
    torch.linalg if hasattr(torch, "linalg") else torch,
]


def snapshot():
    """Return everything that an opened backend changes."""
    flags = []
    if hasattr(torch, "get_autocast_dtype"):
        for device in ("cpu", "cuda"):
            flags += [torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)]
        flags.append(torch.is_autocast_cache_enabled())
        flags.append(torch.autocast_increment_nesting())
        torch.autocast_decrement_nesting()
    mha = getattr(torch.backends, "mha", None)
    return [dict(vars(owner)) for owner in OWNERS] + [flags, mha and mha.get_fastpath_enabled()]
