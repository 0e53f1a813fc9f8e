"""Methods that a subclass of ``apex.parallel.DistributedDataParallel`` may override in vain. Without torch."""

#: Methods of Apex's class that a subclass might override. There are none of them here.
REDUCTION_METHODS = (
    "allreduce_bucket",
    "allreduce_fallback",
    "allreduce_maybe_retain",
    "comm_ready_buckets",
    "create_hooks",
    "sync_bucket_structure",
)
