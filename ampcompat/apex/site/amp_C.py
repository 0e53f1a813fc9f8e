"""Apex's functions on lists of tensors."""

import importlib.util
import sys

if importlib.util.find_spec("ampcompat") is None:  # a checkout that is not on sys.path; `apex` finds it
    import apex  # noqa: F401

from ampcompat.apex import nvidia_apex  # noqa: E402
from ampcompat.apex.multi_tensor.functions import (
    multi_tensor_adagrad,
    multi_tensor_adam,
    multi_tensor_adam_capturable,
    multi_tensor_adam_capturable_master,
    multi_tensor_axpby,
    multi_tensor_l2norm,
    multi_tensor_l2norm_mp,
    multi_tensor_l2norm_scale,
    multi_tensor_lamb,
    multi_tensor_lamb_mp,
    multi_tensor_lamb_stage1_cuda,
    multi_tensor_lamb_stage2_cuda,
    multi_tensor_novograd,
    multi_tensor_scale,
    multi_tensor_sgd,
    multi_tensor_unscale_l2norm,
    scale_check_overflow,
    update_scale_hysteresis,
)

_extension = nvidia_apex.extension(__name__)
if _extension is not None:  # NVIDIA's compiled extension, which replaces this module
    sys.modules[__name__] = _extension
