"""Names that Apex's ``apex/__init__.py`` and ``apex.pyprof`` define. torch is imported by functions that need it."""

import logging
import warnings


class DeprecatedFeatureWarning(FutureWarning):
    """Apex's warning category for deprecated features; not used by this package."""


def deprecated_warning(msg):
    """Warn with ``DeprecatedFeatureWarning``, on the first rank only."""
    from ..support.notices import is_first_rank

    if is_first_rank():
        warnings.warn(msg, DeprecatedFeatureWarning, stacklevel=2)


def check_cudnn_version_and_warn(global_option, required_cudnn_version):
    """Return whether cuDNN is available in at least the required version (such as 8500); warn if not."""
    import torch

    cudnn = torch.backends.cudnn
    version = cudnn.version() if cudnn.is_available() else None
    if version is not None and version >= required_cudnn_version:
        return True
    found = "there is no cuDNN" if version is None else f"this is {version}"
    message = f"{global_option} needs cuDNN {required_cudnn_version} or later, and {found}."
    warnings.warn(message, stacklevel=2)
    return False


class RankInfoFormatter(logging.Formatter):
    """Formats log records with ``rank_info``: the ranks in tensor, pipeline, virtual pipeline and data parallelism.

    There is no model parallelism here, so all but the last are 0.
    """

    def format(self, record):
        """Return the text of a record."""
        import torch

        distributed = torch.distributed
        has_ranks = distributed.is_available() and distributed.is_initialized()
        record.rank_info = (0, 0, 0, distributed.get_rank() if has_ranks else 0)
        return super().format(record)


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
