"""Average gradients over the ranks after the backward pass, unless the model's wrapper does so."""

import torch.distributed as dist

from ..apex.parallel import buckets
from ..errors import AmpError
from ..support.torch_compat.thread_context import world_size

_AVERAGING_WRAPPERS = frozenset(["DistributedDataParallel", "FullyShardedDataParallel"])


def allreduce_grads(params, coalesce=True, bucket_size_mb=-1):
    """Average the gradients of params over all ranks, in place; without a process group, do nothing.

    Args:
        params: in the same order on every rank. Those without a gradient, which must be the same on every rank, are
            skipped.
        coalesce: reduce many gradients in one call.
        bucket_size_mb: the size in MiB of the buckets that are reduced together; by default there is one bucket.

    Raises:
        AmpError: a gradient is sparse.
    """
    grads = [param.grad for param in params if param.requires_grad and param.grad is not None]
    if world_size() == 1:
        return
    if any(grad.is_sparse for grad in grads):
        raise AmpError(
            "allreduce_grads needs dense gradients, and one is sparse. Use sparse=False in the embedding, or wrap the "
            "model in DistributedDataParallel, which reduces both."
        )
    for bucket in _buckets(grads, bucket_size_mb) if coalesce else [[grad] for grad in grads]:
        buckets.flat_dist_call(bucket, dist.all_reduce)


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


def averages_gradients(model):
    """Return whether a wrapper around the model averages gradients in the backward pass."""
    return any(base.__name__ in _AVERAGING_WRAPPERS for base in type(model).__mro__)


def unwrap(model):
    """Return the model inside DataParallel, DistributedDataParallel and similar wrappers."""
    while any("Parallel" in base.__name__ for base in type(model).__mro__) and hasattr(model, "module"):
        model = model.module
    return model
