"""Tensors, modules and storages that a script sends to the GPU go to the target.

Owns: the stand-ins of ``Tensor.to``, ``cuda``, ``cpu``, ``is_cuda``, ``get_device``, ``Module.to`` and of storages.
Must not touch: what goes elsewhere than to CUDA.
The surprise: whatever is on the target counts as a CUDA tensor, a batch fresh from a loader too, since on one device
nobody can tell. A CPU tensor is not copied by ``.cuda()``; but ``.cpu()`` and ``.to("cpu")`` copy, because scripts
take snapshots of live weights with them, which on a GPU do not follow the weights.
"""

import functools


def _translated(target, args, kwargs):
    """Return the arguments of ``to``: only the first positional one can be a device."""
    if args:
        args = (target.of(args[0]),) + args[1:]
    if "device" in kwargs:
        kwargs = dict(kwargs, device=target.of(kwargs["device"]))
    return args, kwargs


def tensor_to(target, original):
    """Return ``Tensor.to``."""

    @functools.wraps(original)
    def to(self, *args, **kwargs):
        wanted = args[0] if args else kwargs.get("device")
        to_host = isinstance(wanted, str) and wanted == target.type == "cpu"
        args, kwargs = _translated(target, args, kwargs)
        moved = original(self, *args, **kwargs)
        return moved.clone() if to_host and moved is self else moved

    return to


def module_to(target, original):
    """Return ``Module.to``."""

    @functools.wraps(original)
    def to(self, *args, **kwargs):
        args, kwargs = _translated(target, args, kwargs)
        return original(self, *args, **kwargs)

    return to


def tensor_cuda(target, original):
    """Return ``Tensor.cuda``."""

    @functools.wraps(original)
    def cuda(self, device=None, non_blocking=False, **kwargs):
        return self.to(device=target.device(device), non_blocking=non_blocking, **kwargs)

    return cuda


def tensor_cpu(target, original):
    """Return ``Tensor.cpu``."""
    if target.type != "cpu":
        return original

    @functools.wraps(original)
    def cpu(self, *args, **kwargs):
        moved = original(self, *args, **kwargs)
        return moved.clone() if moved is self else moved

    return cpu


def unchanged(target, original):
    """Return a method that returns its object: nothing is pinned without a GPU to copy to."""

    @functools.wraps(original)
    def same(self, *args, **kwargs):
        return self

    return same


def tensor_is_cuda(target, original):
    """Return the property ``is_cuda``."""
    return property(target.holds, doc="Whether the tensor is on the device in place of CUDA.")


def get_device(target, original):
    """Return ``Tensor.get_device``, which is ``torch.get_device`` too."""

    @functools.wraps(original)
    def index(self):
        return (self.device.index or 0) if target.holds(self) else original(self)

    return index


def storage_cuda(target, original):
    """Return ``cuda`` of a storage class: what ``map_location=lambda storage, location: storage.cuda()`` calls."""

    @functools.wraps(original)
    def cuda(self, device=None, *args, **kwargs):
        return self if target.type == "cpu" else self.to(device=target.device(device))

    return cuda
