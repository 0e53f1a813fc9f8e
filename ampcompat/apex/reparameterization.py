"""Weight normalization (Salimans and Kingma, 2016) under Apex's names, based on ``torch.nn.utils.weight_norm``.

torch warns that its newer parametrizations should be used. Their checkpoints have different names than ``weight_g`` and
``weight_v``, so the warning is suppressed.
"""

import warnings

import torch
from torch.nn.utils.weight_norm import WeightNorm

from ..errors import AmpValueError


def apply_weight_norm(module, name="", dim=0, hook_child=True):
    """Replace params by a length (``<name>_g``) and a direction (``<name>_v``), and return ``module``.

    Args:
        name: the param, such as ``"weight"`` or ``"layers.0.weight"``; "" means all params with at least two
            dimensions.
        dim: the dimension along which lengths are kept; None: one length for the whole param.
        hook_child: accepted, no effect: the weight is always computed by the module that owns it.

    Raises:
        AmpValueError: there is no such param.
    """
    names = [name] if name else [each for each, param in list(module.named_parameters()) if param.dim() > 1]
    for each in names:
        owner, own_name = _find_owner(module, each)
        if not isinstance(getattr(owner, own_name, None), torch.Tensor):
            raise AmpValueError(f"apply_weight_norm: {each!r} is not a param of {type(module).__name__}.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.nn.utils.weight_norm(owner, own_name, dim)
    return module


def remove_weight_norm(module, name="", remove_all=False):
    """Undo ``apply_weight_norm``, and return ``module``.

    Args:
        name: the param; "" means all of them.
        remove_all: remove all of them, whatever ``name`` is.

    Raises:
        AmpValueError: the param has no weight norm.
    """
    if name and not remove_all:
        owned = [_find_owner(module, name)]
    else:
        owned = [(owner, own_name) for owner in module.modules() for own_name in _weight_norm_names(owner)]
    for owner, own_name in owned:
        if own_name not in _weight_norm_names(owner):
            raise AmpValueError(f"remove_weight_norm: {name!r} of {type(module).__name__} has none.")
        torch.nn.utils.remove_weight_norm(owner, own_name)
    return module


def _find_owner(module, name):
    """Return the module within ``module`` that owns a param, and the param's name there."""
    path, _, own_name = name.rpartition(".")
    for part in path.split(".") if path else ():
        module = getattr(module, part, None)
    return module, own_name


def _weight_norm_names(owner):
    """Return the names of a module's own params that weight norm computes."""
    hooks = getattr(owner, "_forward_pre_hooks", {}).values()
    return [hook.name for hook in hooks if isinstance(hook, WeightNorm)]
