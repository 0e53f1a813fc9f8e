"""Which layers stay float32: those that ``keep_fp32`` names, and norms with statistics at ``keep_batchnorm_fp32``."""

import fnmatch

import torch

from ...errors import AmpError, AmpTypeError
from ...support.torch_compat import features


def is_batch_norm(module):
    """Return whether ``keep_batchnorm_fp32`` applies to a module.

    It does to batch norms, also those without affine params, and to instance norms that track running statistics.
    """
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm) or _is_instance_norm_with_statistics(module)


def _is_instance_norm_with_statistics(module):
    return isinstance(module, torch.nn.modules.instancenorm._InstanceNorm) and module.track_running_stats


def batch_norms(model):
    """Return the modules of a model that ``keep_batchnorm_fp32`` applies to."""
    return [module for module in model.modules() if is_batch_norm(module)]


def needs_wide_input(norm, low, high):
    """Return whether a batch norm with params or statistics in ``high`` rejects input in ``low`` on its device.

    So does an instance norm without weights, whose statistics torch 2.13 rounds to the dtype of its input.
    """
    if _is_instance_norm_with_statistics(norm) and not norm.affine:
        return True
    owned = list(norm.parameters()) + list(norm.buffers())
    return bool(owned) and not features.has_mixed_batch_norm(str(owned[0].device), low, high)


def matching(model, wanted):
    """Return the outermost modules of ``model`` that the entries of ``keep_fp32`` name.

    Args:
        wanted: a list of module types, modules, ``fnmatch`` patterns for dotted names, predicates ``f(name, module)``.

    Raises:
        AmpTypeError: an entry is not one of these.
        AmpError: an entry matches nothing, which usually is a misspelling.
    """
    found = {}
    for entry in wanted:
        matches = _predicate(entry)
        hits = {name: module for name, module in model.named_modules() if matches(name, module)}
        if not hits:
            raise AmpError(f"keep_fp32: {entry!r} matches no module of the model.")
        found.update(hits)
    inner = {id(child) for module in found.values() for child in module.modules() if child is not module}
    return [module for module in found.values() if id(module) not in inner]


def _predicate(entry):
    if isinstance(entry, torch.nn.Module):
        return lambda name, module: module is entry
    if isinstance(entry, type) and issubclass(entry, torch.nn.Module):
        return lambda name, module: isinstance(module, entry)
    if isinstance(entry, str):
        return lambda name, module: fnmatch.fnmatchcase(name, entry)
    if callable(entry) and not isinstance(entry, type):
        return entry
    raise AmpTypeError(
        f"keep_fp32 takes module types, modules, name patterns and predicates f(name, module), not {entry!r}."
    )
