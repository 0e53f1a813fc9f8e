"""Gradients averaged over processes."""

from ampcompat.apex.parallel.buckets import flat_dist_call, flatten, unflatten
from ampcompat.apex.parallel.distributed import DistributedDataParallel, Reducer
