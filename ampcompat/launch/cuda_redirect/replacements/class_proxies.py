"""Proxies of classes whose constructors must return something else: ``torch.device``, ``torch.cuda.FloatTensor``, …

``x.type()`` returns ``torch.cuda.FloatTensor``, as ``x.is_cuda`` is True: code written for Apex sorts gradients into
buckets by these strings.

A proxy is a class only for ``isinstance`` and ``issubclass``. Calling it returns an instance of the real class.
"""

import torch

from . import device_arguments


class _ProxyMeta(type):
    """The metaclass of proxies."""

    def __call__(cls, *args, **kwargs):
        return cls._make(*args, **kwargs)

    def __instancecheck__(cls, instance):
        return cls._accepts(instance)

    def __subclasscheck__(cls, other):
        return other is cls or (cls._real is not None and issubclass(other, cls._real))

    # Equal to the real class, so that look-ups in dicts with classes as keys (torch.fx, torch.compile) find either.

    def __eq__(cls, other):
        return other is cls or (cls._real is not None and other is cls._real)

    def __hash__(cls):
        return type.__hash__(cls) if cls._real is None else hash(cls._real)

    def __getattr__(cls, name):
        if cls._real is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(cls._real, name)


def proxy(name, module, make, accepts, real=None, **attributes):
    """Return a class with this name; calling it calls ``make``, and ``isinstance`` checks call ``accepts``."""
    body = dict(attributes, __module__=module, _make=staticmethod(make), _accepts=staticmethod(accepts), _real=real)
    return _ProxyMeta(name, (), body)


def device(target, original):
    """Replace ``torch.device`` if an index alone does not mean a CUDA device."""
    try:
        if original(0).type == "cuda":
            return original
    except RuntimeError:  # torch 2.13 without any accelerator
        pass

    def make(*args, **kwargs):
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = ("cuda",) + args
        return original(*args, **kwargs)

    return proxy("device", "torch", make, original.__instancecheck__, original, __doc__=original.__doc__)


def current_accelerator(target, original, *args, **kwargs):
    """``torch.accelerator.current_accelerator``; None instead of CUDA, for a torch built for CUDA without a GPU."""
    found = original(*args, **kwargs)
    return None if found is None or found.type == "cuda" else found


def generator(target, original):
    """Replace ``torch.Generator``: a generator for CUDA becomes one for the target."""

    def make(*args, **kwargs):
        args, kwargs = device_arguments.with_translated_device(target, args, kwargs)
        return original(*args, **kwargs)

    return proxy("Generator", original.__module__, make, original.__instancecheck__, original, __doc__=original.__doc__)


#: CUDA's tensor types.
DTYPES = {
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
    dtype = getattr(torch, DTYPES[name])

    def make(*args, **kwargs):
        return getattr(torch, name)(*args, **kwargs).to(target.device())

    def accepts(value):
        return isinstance(value, torch.Tensor) and value.dtype is dtype and target.is_on_target(value)

    return proxy(name, "torch.cuda", make, accepts, cuda_dtype=dtype, dtype=dtype, is_cuda=True)


def _dtype_of(tensor_type):
    """Return the dtype of a CUDA tensor type, given as a class or a string; None for anything else."""
    if isinstance(tensor_type, str) and tensor_type.startswith(_PREFIX):
        return getattr(torch, DTYPES.get(tensor_type[len(_PREFIX) :], ""), None)
    return getattr(tensor_type, "cuda_dtype", None)


def tensor_type(target, original, self, dtype=None, *args, **kwargs):
    """``Tensor.type``."""
    if dtype is None:
        name, own = original(self), "torch." if target.type == "cpu" else f"torch.{target.type}."
        return _PREFIX + name[len(own) :] if target.is_on_target(self) and name.startswith(own) else name
    cuda_dtype = _dtype_of(dtype)
    if cuda_dtype is None:
        return original(self, dtype, *args, **kwargs)
    return self.to(device=target.device(), dtype=cuda_dtype)


def set_default_tensor_type(target, original, tensor_type):
    """``torch.set_default_tensor_type``."""
    dtype = _dtype_of(tensor_type)
    if dtype is None:
        original(tensor_type)
        return
    torch.set_default_dtype(dtype)
    if target.type != "cpu":
        torch.set_default_device(target.device())
