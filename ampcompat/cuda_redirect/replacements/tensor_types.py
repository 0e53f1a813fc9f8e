"""Replacements for ``torch.cuda.FloatTensor`` and the other tensor types, and functions that accept or return them.

``x.type()`` returns ``torch.cuda.FloatTensor``, as ``x.is_cuda`` is True: code written for Apex sorts gradients into
buckets by these strings.
"""

import functools

import torch

from . import class_proxies

_DTYPES = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "ByteTensor": "uint8",
    "CharTensor": "int8",
    "ShortTensor": "int16",
    "IntTensor": "int32",
    "LongTensor": "int64",
    "BoolTensor": "bool",
}
_PREFIX = "torch.cuda."


def cuda_type(target, original):
    """Replace one of CUDA's tensor types."""
    name = original.__name__.rpartition(".")[2]
    dtype = getattr(torch, _DTYPES[name])

    def make(*args, **kwargs):
        return getattr(torch, name)(*args, **kwargs).to(target.device())

    def accepts(value):
        return isinstance(value, torch.Tensor) and value.dtype is dtype and target.is_on_target(value)

    return class_proxies.proxy(name, "torch.cuda", make, accepts, cuda_dtype=dtype, dtype=dtype, is_cuda=True)


def _dtype_of(tensor_type):
    """Return the dtype of a CUDA tensor type, given as a class or a string; None for anything else."""
    if isinstance(tensor_type, str) and tensor_type.startswith(_PREFIX):
        return getattr(torch, _DTYPES.get(tensor_type[len(_PREFIX) :], ""), None)
    return getattr(tensor_type, "cuda_dtype", None)


def tensor_type(target, original):
    """Replace ``Tensor.type``."""
    own = "torch." if target.type == "cpu" else f"torch.{target.type}."

    @functools.wraps(original)
    def type(self, dtype=None, *args, **kwargs):
        if dtype is None:
            name = original(self)
            return _PREFIX + name[len(own) :] if target.is_on_target(self) and name.startswith(own) else name
        cuda_dtype = _dtype_of(dtype)
        if cuda_dtype is None:
            return original(self, dtype, *args, **kwargs)
        return self.to(device=target.device(), dtype=cuda_dtype)

    return type


def set_default_tensor_type(target, original):
    """Replace ``torch.set_default_tensor_type``."""

    @functools.wraps(original)
    def set_default(tensor_type):
        dtype = _dtype_of(tensor_type)
        if dtype is None:
            original(tensor_type)
            return
        torch.set_default_dtype(dtype)
        if target.type != "cpu":
            torch.set_default_device(target.device())

    return set_default
