"""Replace mmcv's own names by ampcompat's, so that configs and models written for mmcv run unchanged."""

import importlib

import torch

from ..errors import AmpError
from ..support.patching import PatchStack
from . import casts, hooks, mmcv_loss_scaler, session_access
from .hooks import import_mmcv_runner

_HOOKS = (
    hooks.OptimizerHook,
    hooks.Fp16OptimizerHook,
    hooks.GradientCumulativeOptimizerHook,
    hooks.GradientCumulativeFp16OptimizerHook,
)
_FUNCTIONS = (
    casts.auto_fp16,
    casts.force_fp32,
    casts.wrap_fp16_model,
    casts.patch_norm_fp32,
    casts.patch_forward_method,
    mmcv_loss_scaler.LossScaler,
)
_MODULES = ("", ".fp16_utils", ".hooks", ".hooks.optimizer")


def install():
    """Replace mmcv's hooks, decorators and functions by ampcompat's.

    Call it before the models are imported: before torch 1.6, methods that mmcv has already decorated do not change.

    Returns:
        A function that restores mmcv's own names.

    Raises:
        RuntimeError: mmcv 1.x, or a package that it needs, is not installed.
    """
    runner = import_mmcv_runner()
    if runner is None:
        raise AmpError(
            "mmcv.runner cannot be imported: install needs mmcv 1.x and the torchvision that it needs. The hooks and "
            "decorators of ampcompat.mmcv work without mmcv."
        )
    patches = PatchStack()
    for replacement in _HOOKS:
        original = runner.HOOKS.get(replacement.__name__)
        runner.HOOKS.register_module(name=replacement.__name__, force=True, module=replacement)
        if original is not None:
            patches.defer(_register, runner.HOOKS, original)
    for name in _MODULES:
        module = importlib.import_module("mmcv.runner" + name)
        for replacement in _HOOKS + _FUNCTIONS:
            if hasattr(module, replacement.__name__):
                patches.set(module, replacement.__name__, replacement)
    utils = importlib.import_module("mmcv.runner.fp16_utils")
    # Methods that mmcv decorated earlier look these two up at each call.
    patches.set(utils, "autocast", _autocast)
    patches.set(utils, "cast_tensor_type", _cast_tensor_type)
    return patches.undo


def _register(registry, hook):
    registry.register_module(name=hook.__name__, force=True, module=hook)


def _autocast(*args, enabled=True, **kwargs):
    """Replace torch's autocast in mmcv's decorators."""
    session = session_access.session()
    if session_access.dtypes(session) is None:
        return session.cast_backend.paused()
    return session.process_casts.region() if enabled else session.process_casts.paused()


def _cast_tensor_type(inputs, src_type, dst_type):
    """Replace mmcv's function: cast in the session's dtypes; if the session computes in float32, cast nothing."""
    pair = session_access.dtypes(session_access.session())
    if pair is None:
        return inputs
    dtypes = {torch.half: pair.low, torch.float: pair.high}
    return casts.cast_tensor_type(inputs, dtypes.get(src_type, src_type), dtypes.get(dst_type, dst_type))
