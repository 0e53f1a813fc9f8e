"""Replacements for functions with arguments that specify a device, and for those that move tensors to the GPU and back.

Defaults are replaced too, since "cuda" may be one. Calls with wrong arguments are passed to the function unchanged.

Every tensor on the target counts as a CUDA tensor, since they cannot be distinguished. ``.cuda()`` does not copy a CPU
tensor; ``.cpu()`` and ``.to("cpu")`` do, because scripts use them for snapshots of weights, which must not change with
the weights.
"""

import functools
import inspect

import torch

from ....support.torch_compat.process_groups import destroy_groups_at_exit, import_functions_of_default_group


def _without_cuda_activity(target, activities):
    if activities is None:
        return None
    return [activity for activity in activities if getattr(activity, "name", "") != "CUDA"]


def _backend(target, backend):
    """Return the backend of a process group that is about to be created, with NCCL replaced."""
    import_functions_of_default_group()
    if not isinstance(backend, str) or "nccl" not in backend.lower():
        return backend
    destroy_groups_at_exit()
    has_xccl = getattr(torch.distributed, "is_xccl_available", lambda: False)
    return "xccl" if target.type == "xpu" and has_xccl() else "gloo"


#: rule -> function(target, value) -> value
RULES = {
    "device": lambda target, value: target.translated(value),
    "type": lambda target, value: target.type if target.means_cuda(value) else value,
    "location": lambda target, value: str(target.translated(value)) if target.means_cuda(value) else value,
    "not cuda": lambda target, value: None if target.means_cuda(value) else value,
    "none": lambda target, value: None,
    "false": lambda target, value: False,
    "backend": _backend,
    "activities": _without_cuda_activity,
}


def with_translated_device(target, args, kwargs):
    """Return arguments with the device translated: the first positional argument, or the keyword."""
    if args:
        args = (target.translated(args[0]),) + args[1:]
    if "device" in kwargs:
        kwargs = dict(kwargs, device=target.translated(kwargs["device"]))
    return args, kwargs


def factory(target, original, *args, **kwargs):
    """Call a function that makes tensors with the keyword ``device`` translated, without ``pin_memory``."""
    if "device" in kwargs:
        kwargs["device"] = target.translated(kwargs["device"])
    kwargs.pop("pin_memory", None)
    return original(*args, **kwargs)


def with_translated_arguments(target, original, rules):
    """Return a Python function with some arguments replaced.

    ``rules`` are (parameter, name of a rule) pairs; parameters that the function does not have are skipped.
    """
    signature = inspect.signature(original)
    rules = [(parameter, RULES[rule]) for parameter, rule in rules if parameter in signature.parameters]

    @functools.wraps(original)
    def call(*args, **kwargs):
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # raises its own TypeError
        bound.apply_defaults()
        for parameter, rule in rules:
            bound.arguments[parameter] = rule(target, bound.arguments[parameter])
        return original(*bound.args, **bound.kwargs)

    return call


def tensor_to(target, original, self, *args, **kwargs):
    """``Tensor.to``."""
    device = args[0] if args else kwargs.get("device")
    to_host = isinstance(device, str) and device == target.type == "cpu"
    args, kwargs = with_translated_device(target, args, kwargs)
    moved = original(self, *args, **kwargs)
    return moved.clone() if to_host and moved is self else moved


def module_to(target, original, self, *args, **kwargs):
    """``Module.to``."""
    args, kwargs = with_translated_device(target, args, kwargs)
    return original(self, *args, **kwargs)


def tensor_cuda(target, original, self, device=None, non_blocking=False, **kwargs):
    """``Tensor.cuda``."""
    return self.to(device=target.device(device), non_blocking=non_blocking, **kwargs)


def tensor_cpu(target, original, self, *args, **kwargs):
    """``Tensor.cpu``."""
    moved = original(self, *args, **kwargs)
    return moved.clone() if target.type == "cpu" and moved is self else moved


def return_self(target, original, self, *args, **kwargs):
    """``pin_memory``, which does nothing."""
    return self


def tensor_is_cuda(target, original):
    """Replace the property ``is_cuda``."""
    return property(target.is_on_target, doc="Whether the tensor is on the device that replaces CUDA.")


def get_device(target, original, self):
    """``Tensor.get_device`` or ``torch.get_device``."""
    return (self.device.index or 0) if target.is_on_target(self) else original(self)


def storage_cuda(target, original, self, device=None, *args, **kwargs):
    """``cuda`` of a storage class, which ``map_location=lambda storage, location: storage.cuda()`` calls."""
    return self if target.type == "cpu" else self.to(device=target.device(device))
