"""torch's fake tensors: dtype, shape, strides and device, but no values and no memory.

Under ``FakeTensorMode``, a step allocates nothing but shows what it would allocate. It is private in torch, and its
compiler is based on it.
"""

import functools
import sys

import torch

from ...errors import AmpError
from . import features

_MODULE = "torch._subclasses.fake_tensor"

#: The first torch with fake tensors that are known to work in a whole training step.
OLDEST = "2.5"


def is_fake_type(kind):
    """Return whether a class is that of fake tensors, which replace plain tensors and params."""
    module = sys.modules.get(_MODULE)
    return module is not None and kind is getattr(module, "FakeTensor", None)


def answered_device(function, args):
    """Return the device if an operation queries that of a fake tensor, otherwise None.

    Two of three operations of a step do so, and each goes through all dispatch modes; the innermost returns this.
    """
    if function is not _asking_device() or not is_fake_type(type(args[0])) or args[0].fake_mode.in_kernel_invocation:
        return None
    return args[0].fake_device


@functools.lru_cache(maxsize=None)
def _asking_device():
    return torch.ops.prim.device.default


def address(tensor):
    """Return the address of a tensor's first element; for a fake tensor, a number that can be compared likewise."""
    if not is_fake_type(type(tensor)):
        return tensor.data_ptr()
    return tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size()


def require():
    """Raise if this torch has no fake tensors.

    Raises:
        AmpError: a torch before ``OLDEST``.
    """
    if not features.is_version_within(oldest=OLDEST):
        raise AmpError(
            f"Memory is predicted with torch's fake tensors, which need torch {OLDEST} or later; this is torch "
            f"{features.version()}. Train on it and measure with ampcompat.memory_report."
        )


def new_mode():
    """Return a ``FakeTensorMode``; its operations treat real tensors as fake ones too."""
    require()
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


@functools.lru_cache(maxsize=None)
def loses_versions():
    """Return whether in-place operations on lists of fake tensors do not change their version counters (torch 2.13)."""
    with new_mode():
        tensor = torch.zeros(1)
        torch._foreach_add_([tensor], 1.0)
    return tensor._version == 0


def data_dependent_error():
    """Return the exception that torch raises when the value of a fake tensor is read."""
    from torch._subclasses.fake_tensor import DataDependentOutputException

    return DataDependentOutputException


def unsupported_errors():
    """Return the exceptions that torch raises if an operation cannot be computed on fake tensors."""
    from torch._subclasses import fake_tensor

    names = (
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "UnsupportedFakeTensorException",
        "UnsupportedOperatorException",
    )
    return tuple(getattr(fake_tensor, name) for name in names if hasattr(fake_tensor, name))
