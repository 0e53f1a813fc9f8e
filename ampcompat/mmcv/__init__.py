"""MMCV's mixed precision and gradient accumulation under the names of ``mmcv.runner``; mmcv need not be installed.

Before torch 1.6, MMCV cast the weights itself; from then on it used torch's autocast and GradScaler. This package does
the latter with every torch: weights stay float32, functions cast within ``auto_fp16``, and steps with overflowed
gradients are skipped, also with a static scale. ``Fp16OptimizerHook(opt_level="O2")`` casts the weights and keeps
float32 master weights, as MMCV did before torch 1.6.
"""

import importlib

#: name -> the module of this package that defines it.
_MODULES = {
    "Fp16OptimizerHook": "hooks",
    "GradientCumulativeFp16OptimizerHook": "hooks",
    "GradientCumulativeOptimizerHook": "hooks",
    "Hook": "hooks",
    "LossScaler": "mmcv_loss_scaler",
    "OptimizerHook": "hooks",
    "allreduce_grads": "hooks",
    "auto_fp16": "casts",
    "cast_tensor_type": "casts",
    "force_fp32": "casts",
    "install": "installation",
    "patch_forward_method": "casts",
    "patch_norm_fp32": "casts",
    "wrap_fp16_model": "casts",
}
__all__ = sorted(_MODULES)


def __getattr__(name):
    """Import the module of a name when it is first used: the hooks import an installed mmcv, which is slow."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module("." + _MODULES[name], __name__), name)
    return globals().setdefault(name, found)


def __dir__():
    return sorted(set(globals()) | set(__all__))
