"""The steps of a batch norm over several processes."""

import importlib.util
import sys

if importlib.util.find_spec("ampcompat") is None:  # a checkout that is not on sys.path; `apex` finds it
    import apex  # noqa: F401

from ampcompat.apex import nvidia_apex  # noqa: E402
from ampcompat.apex.parallel.sync_batchnorm import (
    batchnorm_backward,
    batchnorm_backward_c_last,
    batchnorm_forward,
    batchnorm_forward_c_last,
    reduce_bn,
    reduce_bn_c_last,
    relu_bw_c_last,
    welford_mean_var,
    welford_mean_var_c_last,
    welford_parallel,
)

_extension = nvidia_apex.extension(__name__)
if _extension is not None:  # NVIDIA's compiled extension, which replaces this module
    sys.modules[__name__] = _extension
