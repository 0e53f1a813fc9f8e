"""Replacements for functions that move tensors, modules and storages to the GPU and back.

Every tensor on the target counts as a CUDA tensor, since they cannot be distinguished. ``.cuda()`` does not copy a CPU
tensor; ``.cpu()`` and ``.to("cpu")`` do, because scripts use them for snapshots of weights, which must not change with
the weights.
"""

import functools

from .device_arguments import with_translated_device


def tensor_to(target, original):
    """Replace ``Tensor.to``."""

    @functools.wraps(original)
    def to(self, *args, **kwargs):
        device = args[0] if args else kwargs.get("device")
        to_host = isinstance(device, str) and device == target.type == "cpu"
        args, kwargs = with_translated_device(target, args, kwargs)
        moved = original(self, *args, **kwargs)
        return moved.clone() if to_host and moved is self else moved

    return to


def module_to(target, original):
    """Replace ``Module.to``."""

    @functools.wraps(original)
    def to(self, *args, **kwargs):
        args, kwargs = with_translated_device(target, args, kwargs)
        return original(self, *args, **kwargs)

    return to


def tensor_cuda(target, original):
    """Replace ``Tensor.cuda``."""

    @functools.wraps(original)
    def cuda(self, device=None, non_blocking=False, **kwargs):
        return self.to(device=target.device(device), non_blocking=non_blocking, **kwargs)

    return cuda


def tensor_cpu(target, original):
    """Replace ``Tensor.cpu``."""
    if target.type != "cpu":
        return original

    @functools.wraps(original)
    def cpu(self, *args, **kwargs):
        moved = original(self, *args, **kwargs)
        return moved.clone() if moved is self else moved

    return cpu


def return_self(target, original):
    """Replace ``pin_memory`` by a method that returns its object."""

    @functools.wraps(original)
    def same(self, *args, **kwargs):
        return self

    return same


def tensor_is_cuda(target, original):
    """Replace the property ``is_cuda``."""
    return property(target.is_on_target, doc="Whether the tensor is on the device that replaces CUDA.")


def get_device(target, original):
    """Replace ``Tensor.get_device`` or ``torch.get_device``."""

    @functools.wraps(original)
    def index(self):
        return (self.device.index or 0) if target.is_on_target(self) else original(self)

    return index


def storage_cuda(target, original):
    """Replace ``cuda`` of a storage class, which ``map_location=lambda storage, location: storage.cuda()`` calls."""

    @functools.wraps(original)
    def cuda(self, device=None, *args, **kwargs):
        return self if target.type == "cpu" else self.to(device=target.device(device))

    return cuda
