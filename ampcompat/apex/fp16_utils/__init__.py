"""The names of ``apex.fp16_utils``: manual mixed precision, as in scripts from before ``amp.initialize``.

Nothing here patches functions or needs ``amp``. "Half" is float16, or the low dtype of ``ampcompat run
--dtypes LOW,HIGH``.
"""

from .fp16_optimizer import FP16_Optimizer
from .fp16util import (
    BN_convert_float,
    DynamicLossScaler,
    FP16Model,
    LossScaler,
    clip_grad_norm,
    convert_module,
    convert_network,
    master_params_to_model_params,
    model_grads_to_master_grads,
    network_to_half,
    prep_param_lists,
    to_python_float,
    tofp16,
)
