"""Layer norm and RMS norm as functions of tensors.

The plain functions return the input's dtype, the ``mixed_dtype`` ones the weight's; both compute in float32 at least.
At O1 and O4 norms are rows of the op table: inputs are cast to float32 and the result is float32.

The formulas (Ba, Kiros and Hinton 2016; Zhang and Sennrich 2019), over the last ``len(normalized_shape)`` dimensions:

    layer norm   (x - mean(x)) / sqrt(var(x) + eps) * weight + bias        var with divisor n
    RMS norm      x / sqrt(mean(x * x) + eps) * weight
"""

import numbers

import torch

from ... import tensor_lists
from ...op_table import rules
from ...torch_compat import features
from ...training import registrations


def _in_float(function):
    """Decorate a norm: O1 and O4 cast it in the same way as ``torch.nn.functional.layer_norm``."""
    return registrations.cast_when_active(function, rules.FLOAT)


@_in_float
def fused_layer_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the layer norm of ``input`` without weights. torch decides what is saved for backward."""
    return _layer_norm(input, normalized_shape, None, None, eps, input.dtype)


@_in_float
def fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the layer norm of ``input``, in its dtype; ``weight`` and ``bias`` may be of another."""
    return _layer_norm(input, normalized_shape, weight, bias, eps, input.dtype)


@_in_float
def mixed_dtype_fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the layer norm of ``input`` in the dtype of ``weight``."""
    return _layer_norm(input, normalized_shape, weight, bias, eps, weight.dtype)


@_in_float
def fused_rms_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the RMS norm of ``input`` without a weight. torch decides what is saved for backward."""
    return _rms_norm(input, normalized_shape, None, eps, input.dtype)


@_in_float
def fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the RMS norm of ``input``, in its dtype; ``weight`` may be of another."""
    return _rms_norm(input, normalized_shape, weight, eps, input.dtype)


@_in_float
def mixed_dtype_fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the RMS norm of ``input`` in the dtype of ``weight``."""
    return _rms_norm(input, normalized_shape, weight, eps, weight.dtype)


@_in_float
def manual_rms_norm(input, normalized_shape, weight, eps):
    """Return the RMS norm of ``input`` in the dtype of ``weight``, or in its own without one."""
    return _rms_norm(input, normalized_shape, weight, eps, input.dtype if weight is None else weight.dtype)


def _layer_norm(input, normalized_shape, weight, bias, eps, dtype):
    given = [tensor for tensor in (input, weight, bias) if tensor is not None]
    shape = _as_shape(normalized_shape)
    if all(tensor.dtype is dtype for tensor in given):
        return torch.nn.functional.layer_norm(input, shape, weight, bias, eps)
    wide = _widest(given)
    weight, bias = (None if tensor is None else tensor.to(wide) for tensor in (weight, bias))
    return torch.nn.functional.layer_norm(input.to(wide), shape, weight, bias, eps).to(dtype)


def _rms_norm(input, normalized_shape, weight, eps, dtype):
    given = [tensor for tensor in (input, weight) if tensor is not None]
    shape = _as_shape(normalized_shape)
    if features.has_rms_norm(input.device.type):
        if all(tensor.dtype is dtype for tensor in given):
            return torch.nn.functional.rms_norm(input, shape, weight, eps)
        wide = _widest(given)
        weight = None if weight is None else weight.to(wide)
        return torch.nn.functional.rms_norm(input.to(wide), shape, weight, eps).to(dtype)
    # On the CPU torch has no kernel for it, and its composite implementation is slower than this one (torch 2.13).
    _check_shape(input, shape, weight)
    wide = _widest(given)
    x = input.to(wide)
    normed = x * torch.rsqrt((x * x).mean(dim=_last_dimensions(shape), keepdim=True) + eps)
    return (normed if weight is None else normed * weight.to(wide)).to(dtype)


def _widest(given):
    """Return the widest dtype among tensors, and float32 at least."""
    wide = torch.float32
    for tensor in given:
        if not tensor_lists.is_narrower(tensor, wide):
            wide = tensor.dtype
    return wide


def _as_shape(normalized_shape):
    return (normalized_shape,) if isinstance(normalized_shape, numbers.Integral) else tuple(normalized_shape)


def _last_dimensions(shape):
    return tuple(range(-len(shape), 0))


def _check_shape(input, shape, weight):
    # torch's own kernels check this too; broadcasting would hide the mistake.
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            "RMS norm over {}: expected an input of shape [*, {}], got {}.".format(
                list(shape), ", ".join(map(str, shape)), list(input.shape)
            )
        )
    if weight is not None and tuple(weight.shape) != shape:
        raise RuntimeError("RMS norm over {}: the weight is of shape {}.".format(list(shape), list(weight.shape)))


class FusedLayerNormFunction:
    """What Apex had as an autograd function; scripts call ``apply``."""

    apply = staticmethod(fused_layer_norm)


class FusedLayerNormAffineFunction:
    """What Apex had as an autograd function; scripts call ``apply``."""

    apply = staticmethod(fused_layer_norm_affine)


class FusedLayerNormAffineMixedDtypesFunction:
    """What Apex had as an autograd function; scripts call ``apply``."""

    apply = staticmethod(mixed_dtype_fused_layer_norm_affine)


class FusedRMSNormFunction:
    """What Apex had as an autograd function; scripts call ``apply``."""

    apply = staticmethod(fused_rms_norm)


class FusedRMSNormAffineFunction:
    """What Apex had as an autograd function; scripts call ``apply``."""

    apply = staticmethod(fused_rms_norm_affine)


class FusedRMSNormAffineMixedDtypesFunction:
    """What Apex had as an autograd function; scripts call ``apply``."""

    apply = staticmethod(mixed_dtype_fused_rms_norm_affine)
