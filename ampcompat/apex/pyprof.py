"""``apex.pyprof`` without effect: scripts that enable the profiler run without it.

Use ``torch.profiler`` and ``torch.autograd.profiler.emit_nvtx`` instead.
"""


def init(*args, **kwargs):
    """Do nothing."""


wrap = init
