"""Layer norm and RMS norm under Apex's names, with torch's own kernels if it has them.

The plain functions return the input's dtype, the ``mixed_dtype`` ones the weight's; both compute in at least float32.
At O1 and O4, norms are rows of the op table: inputs are cast to float32 and the result is float32. In the script's own
``torch.autocast`` regions, tensors are cast to the dtype of the region, as in Apex. The modules are no subclasses of
``torch.nn.LayerNorm``, as in Apex.

The formulas (Ba, Kiros and Hinton 2016; Zhang and Sennrich 2019), over the last ``len(normalized_shape)`` dimensions:

    layer norm   (x - mean(x)) / sqrt(var(x) + eps) * weight + bias        var with divisor n
    RMS norm      x / sqrt(mean(x * x) + eps) * weight
"""

import functools
import numbers
import warnings

import torch

from ..engine.casting import autocast_flags
from ..engine.op_table import expansion
from ..engine.session import process_state, registered_functions
from ..errors import AmpValueError
from ..support import tensor_lists
from ..support.torch_compat import features


def _cast_to_float(function):
    """Decorate a norm: O1 and O4 cast it in the same way as ``torch.nn.functional.layer_norm``, autocast to half."""
    casting = registered_functions.cast_when_active(function, expansion.FLOAT)

    @functools.wraps(function)
    def norm(input, *args, **kwargs):
        session = process_state.current()
        if session is None or not session.cast_backend.active():
            low = autocast_flags.region_dtype(input.device.type)
            if low is not None:
                kwargs = {name: _cast(value, low) for name, value in kwargs.items()}
                return function(_cast(input, low), *[_cast(value, low) for value in args], **kwargs)
        return casting(input, *args, **kwargs)

    return norm


def _cast(value, dtype):
    """Return ``value`` in another dtype if it is a floating-point tensor other than float64."""
    is_cast = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64
    return value.to(dtype) if is_cast else value


@_cast_to_float
def fused_layer_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the layer norm of ``input`` without weights. torch decides what is saved for backward."""
    return _layer_norm(input, normalized_shape, None, None, eps, input.dtype)


@_cast_to_float
def fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the layer norm of ``input``, in its dtype; ``weight`` and ``bias`` may be of another."""
    return _layer_norm(input, normalized_shape, weight, bias, eps, input.dtype)


@_cast_to_float
def mixed_dtype_fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the layer norm of ``input`` in the dtype of ``weight``."""
    return _layer_norm(input, normalized_shape, weight, bias, eps, weight.dtype)


@_cast_to_float
def fused_rms_norm(input, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the RMS norm of ``input`` without a weight. torch decides what is saved for backward."""
    return _rms_norm(input, normalized_shape, None, eps, input.dtype)


@_cast_to_float
def fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the RMS norm of ``input``, in its dtype; ``weight`` may be of another."""
    return _rms_norm(input, normalized_shape, weight, eps, input.dtype)


@_cast_to_float
def mixed_dtype_fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    """Return the RMS norm of ``input`` in the dtype of ``weight``."""
    return _rms_norm(input, normalized_shape, weight, eps, weight.dtype)


@_cast_to_float
def manual_rms_norm(input, normalized_shape, weight, eps):
    """Return the RMS norm of ``input`` in the dtype of ``weight``, or in its own without one."""
    return _rms_norm(input, normalized_shape, weight, eps, input.dtype if weight is None else weight.dtype)


def _layer_norm(input, normalized_shape, weight, bias, eps, dtype):
    shape = _as_shape(normalized_shape)
    input, weight, bias = _same_dtype(input, weight, bias, dtype)
    return torch.nn.functional.layer_norm(input, shape, weight, bias, eps).to(dtype)


def _rms_norm(input, normalized_shape, weight, eps, dtype):
    shape = _as_shape(normalized_shape)
    if features.has_rms_norm(input.device.type):
        input, weight, _ = _same_dtype(input, weight, None, dtype)
        return torch.nn.functional.rms_norm(input, shape, weight, eps).to(dtype)
    # On the CPU torch has no kernel for it, and its composite implementation is slower than this one (torch 2.13).
    _check_shape(input, shape, weight)
    compute_dtype = _widest_dtype([input] if weight is None else [input, weight])
    x = input.to(compute_dtype)
    normed = x * torch.rsqrt((x * x).mean(dim=tuple(range(-len(shape), 0)), keepdim=True) + eps)
    return (normed if weight is None else normed * weight.to(compute_dtype)).to(dtype)


def _same_dtype(input, weight, bias, dtype):
    """Return the tensors (or None) as they are if all have ``dtype``, and otherwise in the widest of their dtypes."""
    tensors = [tensor for tensor in (input, weight, bias) if tensor is not None]
    if all(tensor.dtype is dtype for tensor in tensors):
        return input, weight, bias
    widest = _widest_dtype(tensors)
    return tuple(None if tensor is None else tensor.to(widest) for tensor in (input, weight, bias))


def _widest_dtype(tensors):
    """Return the widest dtype among tensors, but at least float32."""
    widest = torch.float32
    for tensor in tensors:
        if not tensor_lists.is_narrower(tensor, widest):
            widest = tensor.dtype
    return widest


def _as_shape(normalized_shape):
    return (normalized_shape,) if isinstance(normalized_shape, numbers.Integral) else tuple(normalized_shape)


def _check_shape(input, shape, weight):
    # torch's own kernels check this too; broadcasting would hide the mistake.
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            "RMS norm over {}: expected an input of shape [*, {}], got {}.".format(
                list(shape), ", ".join(map(str, shape)), list(input.shape)
            )
        )
    if weight is not None and tuple(weight.shape) != shape:
        raise RuntimeError(f"RMS norm over {list(shape)}: the weight is of shape {list(weight.shape)}.")


def _function_class(name, function):
    """Return a class with the static method ``apply``: in Apex these are autograd functions, and scripts call it."""
    return type(name, (), {"__module__": __name__, "__doc__": function.__doc__, "apply": staticmethod(function)})


FusedLayerNormFunction = _function_class("FusedLayerNormFunction", fused_layer_norm)
FusedLayerNormAffineFunction = _function_class("FusedLayerNormAffineFunction", fused_layer_norm_affine)
FusedLayerNormAffineMixedDtypesFunction = _function_class(
    "FusedLayerNormAffineMixedDtypesFunction", mixed_dtype_fused_layer_norm_affine
)
FusedRMSNormFunction = _function_class("FusedRMSNormFunction", fused_rms_norm)
FusedRMSNormAffineFunction = _function_class("FusedRMSNormAffineFunction", fused_rms_norm_affine)
FusedRMSNormAffineMixedDtypesFunction = _function_class(
    "FusedRMSNormAffineMixedDtypesFunction", mixed_dtype_fused_rms_norm_affine
)


class _FusedNorm(torch.nn.Module):
    """Base class of the norms: a weight of the normalized shape, and an optional bias."""

    _has_bias = False

    def __init__(self, normalized_shape, eps=1e-5, elementwise_affine=True, memory_efficient=False):
        super().__init__()
        if isinstance(normalized_shape, numbers.Integral):
            normalized_shape = (normalized_shape,)
        self.normalized_shape = torch.Size(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.memory_efficient = memory_efficient
        for name in ("weight", "bias") if self._has_bias else ("weight",):
            param = torch.nn.Parameter(torch.empty(self.normalized_shape)) if elementwise_affine else None
            self.register_parameter(name, param)
        self.reset_parameters()

    def reset_parameters(self):
        """Set the weight to 1 and the bias, if there is one, to 0."""
        if self.elementwise_affine:
            torch.nn.init.ones_(self.weight)
            if self._has_bias:
                torch.nn.init.zeros_(self.bias)

    def extra_repr(self):
        """Return the text between the parentheses of ``repr``."""
        return f"{tuple(self.normalized_shape)}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class FusedLayerNorm(_FusedNorm):
    """Layer norm with the result in the input's dtype.

    Args:
        normalized_shape: the last dimensions of the input, as an int or a sequence of them.
        eps: added to the variance.
        elementwise_affine: whether there are a weight and a bias.
        memory_efficient: accepted, no effect; torch decides what is saved for backward.
    """

    __constants__ = ["normalized_shape", "eps"]
    _has_bias = True
    _norm = staticmethod(fused_layer_norm_affine)

    def forward(self, input):
        """Return the norm of ``input``."""
        shape, weight, bias = self.normalized_shape, self.weight, self.bias
        if torch.jit.is_scripting():  # TorchScript supports torch's own functions only, as in Apex
            normed = torch.nn.functional.layer_norm(input, shape, weight, bias, self.eps)
        else:
            normed = self._norm(input, weight, bias, shape, self.eps)
        return normed


class FusedRMSNorm(_FusedNorm):
    """RMS norm with the result in the input's dtype; arguments as for ``FusedLayerNorm``, but without bias."""

    _norm = staticmethod(fused_rms_norm_affine)

    def forward(self, input):
        """Return the norm of ``input``."""
        return self._norm(input, self.weight, self.normalized_shape, self.eps)


class _MixedNorm:
    """Base class of the norms whose result is in the weight's dtype, so that there must be a weight.

    Raises:
        AmpValueError: ``elementwise_affine`` is false. As in Apex, it has no effect otherwise.
        TypeError: there is another keyword.
    """

    def __init__(self, normalized_shape, eps=1e-5, memory_efficient=False, **keywords):
        name, affine = type(self).__name__, keywords.pop("elementwise_affine", None)
        if keywords:
            raise TypeError(f"{name} got an unexpected keyword argument {sorted(keywords)[0]!r}")
        if affine:
            warnings.warn(f"{name} always has a weight: leave elementwise_affine out.", stacklevel=2)
        elif affine is not None:
            raise AmpValueError(f"{name} returns the dtype of its weight, so elementwise_affine must be True.")
        super().__init__(normalized_shape, eps, True, memory_efficient)


class MixedFusedLayerNorm(_MixedNorm, FusedLayerNorm):
    """Layer norm with the result in the weights' dtype: with float32 weights, a half input gives a float32 result."""

    _norm = staticmethod(mixed_dtype_fused_layer_norm_affine)


class MixedFusedRMSNorm(_MixedNorm, FusedRMSNorm):
    """RMS norm with the result in the weight's dtype: with a float32 weight, a half input gives a float32 result."""

    _norm = staticmethod(mixed_dtype_fused_rms_norm_affine)
