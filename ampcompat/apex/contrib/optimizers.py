"""``FusedAdam`` and ``FusedSGD`` from before 2019, whose ``step`` gets gradients, output params and a scale."""

from .. import optimizers
from ..optimizers import FusedLAMB
from ..optimizers.adam import LegacyFusedAdam as FusedAdam
from ..optimizers.explicit_gradients import ExplicitGradientOptimizer

__all__ = ["FusedAdam", "FusedLAMB", "FusedSGD"]


class FusedSGD(ExplicitGradientOptimizer, optimizers.FusedSGD):
    """``apex.optimizers.FusedSGD`` with the ``step`` from before 2019; arguments as there."""
