"""Methods of ``apex.parallel.DistributedDataParallel`` that have no effect if a subclass overrides them.

This module does not import torch.
"""

#: Methods of Apex's class that a subclass might override, and that this package's class does not have.
REDUCTION_METHODS = (
    "allreduce_bucket",
    "allreduce_fallback",
    "allreduce_maybe_retain",
    "comm_ready_buckets",
    "create_hooks",
    "sync_bucket_structure",
)
