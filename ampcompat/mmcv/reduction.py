"""Averages of gradients over the ranks, as MMCV takes them after the backward pass.

Owns: ``allreduce_grads``, and the question whether a model's wrapper does the same by itself.
Must not touch: the process group.
The surprise: DistributedDataParallel has averaged already, so hooks leave it out there.
"""

import torch.distributed as dist

from ..apex.parallel import flat
from ..errors import AmpError

_REDUCING = frozenset(["DistributedDataParallel", "FullyShardedDataParallel"])


def allreduce_grads(params, coalesce=True, bucket_size_mb=-1):
    """Average the gradients of params over all ranks, in place; nothing happens without a process group.

    Args:
        params: the params, in the same order on every rank; those without a gradient are left out, on every rank alike.
        coalesce: send many gradients at once.
        bucket_size_mb: how many MiB at once; all of them by default.

    Raises:
        AmpError: a gradient is sparse.
    """
    grads = [param.grad for param in params if param.requires_grad and param.grad is not None]
    if world_size() == 1:
        return
    if any(grad.is_sparse for grad in grads):
        raise AmpError(
            "allreduce_grads takes dense gradients, and one is sparse. Use sparse=False in the embedding, or wrap the "
            "model in DistributedDataParallel, which reduces both."
        )
    for bucket in _buckets(grads, bucket_size_mb) if coalesce else [[grad] for grad in grads]:
        flat.flat_dist_call(bucket, dist.all_reduce)


def _buckets(grads, size_mb):
    if size_mb <= 0:
        return [grads] if grads else []
    buckets, size, limit = [], 0, size_mb * 2**20
    for grad in grads:
        if not buckets or size >= limit:
            buckets.append([])
            size = 0
        buckets[-1].append(grad)
        size += grad.numel() * grad.element_size()
    return buckets


def world_size():
    """Return the number of processes: 1 without a process group."""
    return dist.get_world_size() if flat.is_distributed() else 1


def reduces_by_itself(model):
    """Return whether a wrapper around the model averages gradients in the backward pass."""
    return any(base.__name__ in _REDUCING for base in type(model).__mro__)


def unwrapped(model):
    """Return the model within DataParallel, DistributedDataParallel and their like."""
    while any("Parallel" in base.__name__ for base in type(model).__mro__) and hasattr(model, "module"):
        model = model.module
    return model
