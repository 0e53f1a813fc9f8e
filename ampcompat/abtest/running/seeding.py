"""Seeds Python, NumPy and torch: the same random numbers for every level, different ones for every repeat.

Most scripts seed the generators themselves, so a repeat would be the same run again. In a repeat, the seeds that they
pass to ``random.seed``, ``numpy.random.seed``, ``numpy.random.default_rng``, ``torch.manual_seed`` and
``torch.cuda.manual_seed`` are therefore increased by ``STRIDE`` times the number of the repeat.
"""

import contextlib
import functools
import numbers
import random
import sys

import torch

from ...support import random_state

#: The distance between the seeds of two repeats. It is large because scripts seed worker n with seed + n.
STRIDE = 1000003

#: NumPy does not accept larger seeds.
LIMIT = 2**32


def seed_all(seed, repeat=0):
    """Seed Python, NumPy where it is loaded, and torch on all devices, for the ``repeat``-th run with ``seed``."""
    seed = (seed + repeat * STRIDE) % LIMIT
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    torch.manual_seed(seed)


def shift_seeds(repeat, patches):
    """Patch the functions that seed a generator so that a repeat gets different seeds; repeat 0 patches nothing."""
    if not repeat:
        return
    owners = [(random, "seed"), (torch, "manual_seed"), (torch.random, "manual_seed")]
    owners += [(torch.cuda, "manual_seed"), (torch.cuda, "manual_seed_all")]
    if "numpy" in sys.modules:
        owners += [(sys.modules["numpy"].random, name) for name in ("seed", "default_rng")]
    inside = []  # not empty within a call: torch.manual_seed calls that of CUDA
    for owner, name in owners:
        if hasattr(owner, name):
            patches.wrap(owner, name, functools.partial(_call_shifted, repeat * STRIDE, inside))


def _call_shifted(offset, inside, function, *args, **kwargs):
    if inside:
        return function(*args, **kwargs)
    inside.append(True)
    try:
        shifted = {name: _shift_seed(value, offset) for name, value in kwargs.items()}
        return function(*[_shift_seed(value, offset) for value in args], **shifted)
    finally:
        inside.pop()


def _shift_seed(value, offset):
    is_seed = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return (int(value) + offset) % LIMIT if is_seed else value


@contextlib.contextmanager
def restored():
    """Restore, after the block, the state of all generators, torch's determinism flags and its default dtype."""
    saved = _flags()
    try:
        with random_state.restored():
            yield
    finally:
        for restore, value in saved:
            restore(value)


def _flags():
    cudnn = torch.backends.cudnn
    found = [(_set_cudnn, (cudnn.deterministic, cudnn.benchmark)), (torch.set_default_dtype, torch.get_default_dtype())]
    found.append((torch.set_grad_enabled, torch.is_grad_enabled()))
    if hasattr(torch, "use_deterministic_algorithms"):
        found.append((torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled()))
    return found


def _set_cudnn(flags):
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags
