"""The local optimizer of torch's ``ZeroRedundancyOptimizer``, which steps on this rank's part of the params.

It and the list that the params are divided by hold params of their own, so masters have to take their places there too.
"""

from ...errors import AmpError
from .master_sync import recast


def is_partitioned(optimizer):
    """Return whether an optimizer is a ``ZeroRedundancyOptimizer``."""
    return "ZeroRedundancyOptimizer" in [base.__name__ for base in type(optimizer).__mro__]


def check(optimizer):
    """Raise if masters cannot take the places of an optimizer's params.

    Raises:
        AmpError: a ``ZeroRedundancyOptimizer`` that broadcasts buckets of weights instead of params.
    """
    if not is_partitioned(optimizer):
        return
    for option, is_set in (
        ("parameters_as_bucket_view", optimizer.parameters_as_bucket_view),
        ("overlap_with_ddp", optimizer._overlap_with_ddp),
    ):
        if is_set:
            raise AmpError(
                f"ZeroRedundancyOptimizer({option}=True) shares buckets of half weights among the ranks, not the "
                "master weights. Leave this option out, or use fully_shard."
            )


def replace_params(optimizer, replacements):
    """Replace params within a ``ZeroRedundancyOptimizer``; its state moves with them, in their dtype.

    Args:
        optimizer: any optimizer; others are left alone.
        replacements: ``{param: the param in its place}``, with shapes alike, so that every rank keeps its part.
    """
    if not is_partitioned(optimizer):
        return
    local = optimizer.optim
    for params in [group["params"] for group in local.param_groups] + [optimizer._all_params]:
        params[:] = [replacements.get(param, param) for param in params]
    for old, new in replacements.items():
        if old in local.state:
            local.state[new] = local.state[old]
            del local.state[old]
            recast(local.state[new], new.shape, new.dtype)
    optimizer._clear_cache()
