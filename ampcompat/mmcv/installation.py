"""Let mmcv's own names mean ours, so that configs and models written for mmcv run without a change.

Owns: ``install``.
Must not touch: anything of mmcv's but the names listed here.
The surprise: methods that mmcv's decorators have decorated already change too. They look up ``autocast`` and
``cast_tensor_type`` at each call, and find ours.
"""

import importlib

import torch

from ..errors import AmpError
from ..parts.patching import PatchStack
from . import conversion, decorators, hooks, opening, scaling
from .foundation import runner_of_mmcv

_HOOKS = (
    hooks.OptimizerHook,
    hooks.Fp16OptimizerHook,
    hooks.GradientCumulativeOptimizerHook,
    hooks.GradientCumulativeFp16OptimizerHook,
)
_FUNCTIONS = (
    decorators.auto_fp16,
    decorators.force_fp32,
    conversion.wrap_fp16_model,
    conversion.patch_norm_fp32,
    conversion.patch_forward_method,
    scaling.LossScaler,
)
_PLACES = ("", ".fp16_utils", ".hooks", ".hooks.optimizer")


def install():
    """Put ampcompat's hooks, decorators and functions in the places of mmcv's.

    Call it before the models are imported: on torch before 1.6 a method that mmcv has decorated already stays as it is.

    Returns:
        A function that puts mmcv's own back.

    Raises:
        RuntimeError: there is no mmcv with a runner: 1.x, and what it needs.
    """
    runner = runner_of_mmcv()
    if runner is None:
        raise AmpError(
            "There is no mmcv.runner to install into: mmcv 1.x, with the torchvision that it needs, has one. The hooks "
            "and decorators of ampcompat.mmcv work without it."
        )
    patches = PatchStack()
    for ours in _HOOKS:
        own = runner.HOOKS.get(ours.__name__)
        runner.HOOKS.register_module(name=ours.__name__, force=True, module=ours)
        if own is not None:
            patches.defer(_register, runner.HOOKS, own)
    for place in _PLACES:
        module = importlib.import_module("mmcv.runner" + place)
        for ours in _HOOKS + _FUNCTIONS:
            if hasattr(module, ours.__name__):
                patches.set(module, ours.__name__, ours)
    utils = importlib.import_module("mmcv.runner.fp16_utils")
    patches.set(utils, "autocast", _autocast)
    patches.set(utils, "cast_tensor_type", _cast_tensor_type)
    return patches.undo


def _register(registry, hook):
    registry.register_module(name=hook.__name__, force=True, module=hook)


def _autocast(*args, enabled=True, **kwargs):
    """Stand in for torch's autocast in mmcv's decorators."""
    found = opening.session()
    if opening.dtypes(found) is None:
        return found.casts.paused()
    return found.process_casts.region() if enabled else found.process_casts.paused()


def _cast_tensor_type(inputs, src_type, dst_type):
    """Stand in for mmcv's own function, in the session's dtypes; nothing is cast where it computes in float32."""
    pair = opening.dtypes(opening.session())
    if pair is None:
        return inputs
    named = {torch.half: pair.low, torch.float: pair.high}
    return conversion.cast_tensor_type(inputs, named.get(src_type, src_type), named.get(dst_type, dst_type))
