"""``applier``, the function of Apex's ``_initialize`` that other libraries import."""

from collections.abc import Iterable, Mapping

import torch

from ampcompat.amp import initialize


def applier(value, fn):
    """Return ``value`` with ``fn`` applied to each tensor, and to each object with a ``.to``, in nested containers."""
    if isinstance(value, torch.Tensor) or (hasattr(value, "to") and not isinstance(value, torch.nn.Module)):
        return fn(value)
    if isinstance(value, Mapping):
        return {key: applier(item, fn) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(applier(item, fn) for item in value)
    if isinstance(value, (tuple, list, set)):
        return type(value)(applier(item, fn) for item in value)
    if isinstance(value, Iterable) and type(value).__module__ == "builtins" and iter(value) is value:
        return (applier(item, fn) for item in value)
    return value
