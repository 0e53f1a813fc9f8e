"""Replacements for Python functions with arguments that specify a device.

Defaults are replaced too, since "cuda" may be one. Calls with wrong arguments are passed to the function unchanged.
"""

import functools
import inspect

import torch

from ...support.torch_compat.process_groups import destroy_groups_at_exit, import_functions_of_default_group


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
