"""The dtypes that this suite calls low and high.

Owns: ``PAIR``, ``LOW``, ``HIGH``, ``low_of``.
Must not touch: the default dtype.
The surprise: where torch has no half arithmetic on the CPU (before 1.10 or so) the whole suite runs on float32 and float64
instead: the same mechanisms, with kernels that exist. ``conftest`` tells ampcompat so by the environment.
"""

import torch

import half_kernels
from ampcompat.tables import opt_levels

IS_STAND_IN = bool(half_kernels.stand_in())
PAIR = opt_levels.STAND_IN if IS_STAND_IN else opt_levels.HALF
LOW, HIGH = PAIR


def low_of(level):
    """Return the low dtype of an opt level: bfloat16 at O4 and O5."""
    return LOW if IS_STAND_IN else opt_levels.OPT_LEVELS[level].dtypes.low
