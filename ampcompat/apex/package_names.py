"""Names that Apex's ``apex/__init__.py`` and ``apex.pyprof`` define."""


class DeprecatedFeatureWarning(FutureWarning):
    """Apex's warning category for deprecated features; not used by this package."""


def init(*args, **kwargs):
    """Do nothing, so that scripts that enable ``apex.pyprof`` run without it.

    Use ``torch.profiler`` and ``torch.autograd.profiler.emit_nvtx`` instead.
    """


wrap = init


#: Methods of Apex's class that a subclass might override, and that this package's class does not have.
REDUCTION_METHODS = (
    "allreduce_bucket",
    "allreduce_fallback",
    "allreduce_maybe_retain",
    "comm_ready_buckets",
    "create_hooks",
    "sync_bucket_structure",
)
