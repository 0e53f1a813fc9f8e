"""The low and the high dtype of the test suite: ``PAIR``, ``LOW``, ``HIGH``, ``low_of``.

If torch has no half arithmetic on the CPU (before about 1.10), the suite runs on float32 and float64: the same code
paths, with kernels that exist. ``conftest`` passes this to ampcompat in environment variables.
"""

from ampcompat import opt_levels
from helpers import half_kernels

IS_STAND_IN = bool(half_kernels.stand_in())
PAIR = opt_levels.STAND_IN if IS_STAND_IN else opt_levels.HALF
LOW, HIGH = PAIR


def low_of(level):
    """Return the low dtype of an opt level: bfloat16 at O4 and O5."""
    return LOW if IS_STAND_IN else opt_levels.OPT_LEVELS[level].dtypes.low
