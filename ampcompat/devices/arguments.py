"""Python functions some of whose arguments name a device.

Owns: the rules by which such an argument is replaced, and the wrapper that applies them.
Must not touch: the other arguments.
The surprise: defaults count as given, since "cuda" can be one. A call that the function itself would refuse goes to
it as it is.
"""

import functools
import inspect

import torch


def _profiled_without_cuda(target, activities):
    if activities is None:
        return None
    return [activity for activity in activities if getattr(activity, "name", "") != "CUDA"]


def _backend(target, backend):
    """Return the name of a process group's backend with NCCL replaced."""
    if not isinstance(backend, str) or "nccl" not in backend.lower():
        return backend
    has_xccl = getattr(torch.distributed, "is_xccl_available", bool)
    return "xccl" if target.type == "xpu" and has_xccl() else "gloo"


#: rule -> function(target, value) -> value
RULES = {
    "device": lambda target, value: target.of(value),
    "type": lambda target, value: target.type if target.means_cuda(value) else value,
    "location": lambda target, value: str(target.of(value)) if target.means_cuda(value) else value,
    "not cuda": lambda target, value: None if target.means_cuda(value) else value,
    "none": lambda target, value: None,
    "false": lambda target, value: False,
    "backend": _backend,
    "activities": _profiled_without_cuda,
}


def redirected(target, original, rules):
    """Return ``original`` with some arguments replaced.

    Args:
        target: the ``Target``.
        original: a Python function.
        rules: (parameter, name of a rule) pairs; a parameter that this torch's function has not is passed over.
    """
    signature = inspect.signature(original)
    rules = [(parameter, RULES[rule]) for parameter, rule in rules if parameter in signature.parameters]

    @functools.wraps(original)
    def call(*args, **kwargs):
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # for its own sentence
        bound.apply_defaults()
        for parameter, rule in rules:
            bound.arguments[parameter] = rule(target, bound.arguments[parameter])
        return original(*bound.args, **bound.kwargs)

    return call
