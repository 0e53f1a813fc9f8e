"""MMCV's mixed precision and gradient accumulation: the names of ``mmcv.runner``, on ampcompat's mechanisms.

Owns: the names that this package exports.
Must not touch: mmcv, but where ``install`` is asked to.
The surprise: mmcv need not be there. Where it is, the hooks are mmcv's kind of hook; that is found out when one is
first used.

What MMCV did in two ways, and which of them this is. MMCV cast the weights itself on torch before 1.6 and used
torch's autocast and GradScaler from then on. Here every torch gets what the newer one got: weights stay float32,
functions are cast within ``auto_fp16``, steps on gradients that overflowed are skipped with a static scale too. That
is what checkpoints in the wild were trained with, and it needs no decorator on every submodule.
``Fp16OptimizerHook(opt_level="O2")`` casts the weights and keeps masters, as the older did.
"""

import importlib

__all__ = [
    "Fp16OptimizerHook",
    "GradientCumulativeFp16OptimizerHook",
    "GradientCumulativeOptimizerHook",
    "Hook",
    "LossScaler",
    "OptimizerHook",
    "allreduce_grads",
    "auto_fp16",
    "cast_tensor_type",
    "force_fp32",
    "install",
    "patch_forward_method",
    "patch_norm_fp32",
    "wrap_fp16_model",
]

_HOMES = {
    "Fp16OptimizerHook": "hooks",
    "GradientCumulativeFp16OptimizerHook": "hooks",
    "GradientCumulativeOptimizerHook": "hooks",
    "Hook": "hooks",
    "LossScaler": "scaling",
    "OptimizerHook": "hooks",
    "allreduce_grads": "reduction",
    "auto_fp16": "decorators",
    "cast_tensor_type": "conversion",
    "force_fp32": "decorators",
    "install": "installation",
    "patch_forward_method": "conversion",
    "patch_norm_fp32": "conversion",
    "wrap_fp16_model": "conversion",
}


def __getattr__(name):
    """Import the module behind a name when it is first used: the hooks look for mmcv, which takes its time."""
    if name not in _HOMES:
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
    found = getattr(importlib.import_module("." + _HOMES[name], __name__), name)
    return globals().setdefault(name, found)


def __dir__():
    return sorted(set(globals()) | set(__all__))
