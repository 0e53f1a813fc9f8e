"""Apex's functions on lists of tensors."""

import importlib.util
import sys

if importlib.util.find_spec("ampcompat") is None:  # a checkout that is on nobody's path, which `apex` knows how to find
    import apex  # noqa: F401

from ampcompat.apex.multi_tensor.functions import (  # noqa: E402
    multi_tensor_scale,
    multi_tensor_axpby,
    multi_tensor_l2norm,
    multi_tensor_l2norm_mp,
    multi_tensor_l2norm_scale,
    multi_tensor_sgd,
    multi_tensor_adam,
    multi_tensor_adam_capturable,
    multi_tensor_adagrad,
    multi_tensor_novograd,
    multi_tensor_lamb,
    multi_tensor_lamb_mp,
    multi_tensor_lamb_stage1_cuda,
    multi_tensor_lamb_stage2_cuda,
)
from ampcompat.apex import beside  # noqa: E402

_theirs = beside.extension(__name__)
if _theirs is not None:  # compiled, and it loads: whoever imports this name gets it
    sys.modules[__name__] = _theirs
