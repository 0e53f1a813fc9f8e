"""The modules that have the params of an optimizer, and their wrappers."""

import sys

import torch

from ...support.live_objects import all_objects

_PARALLEL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def unwrapped(module):
    """Return the model inside DataParallel, DistributedDataParallel or the result of ``torch.compile``."""
    while True:
        inner = _inner(module)
        if inner is None:
            return module
        module = inner


def wrappers(module):
    """Return the DistributedDataParallel wrappers of a module as a list, outermost first."""
    found = []
    while module is not None:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            found.append(module)
        module = _inner(module)
    return found


def _inner(module):
    if isinstance(module, _PARALLEL):
        return module.module
    children = vars(module).get("_modules")  # TorchScript modules have a different object there
    return children.get("_orig_mod") if isinstance(children, dict) else None


def names_half(values):
    """Return whether the values include float16 or bfloat16, or a tensor of these dtypes."""
    return any(getattr(each, "dtype", each) in (torch.float16, torch.bfloat16) for each in values)


def trained_params(optimizers):
    """Return ``{id(param): optimizer}`` of optimizers."""
    return {id(param): each for each in optimizers for param in params_of(each)}


def params_of(optimizer):
    """Return the params of an optimizer as a list."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def are_in_modules(optimizer):
    """Return whether a module has one of the optimizer's params."""
    trained = set(trained_params([optimizer]))
    return any(not trained.isdisjoint(map(id, each.parameters(recurse=False))) for each in all_modules())


def is_first_fsdp(model):
    """Return whether a model, or a module in it, is sharded by FullyShardedDataParallel (FSDP1)."""
    first = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    return any(isinstance(each, first) for each in model.modules())


def classes_with_params_of(optimizer):
    """Return the classes that define ``forward`` of modules with params of an optimizer, without torch's own."""
    trained = set(trained_params([optimizer]))
    own = [each for each in all_modules() if _defines_forward(type(each))]
    return list({type(each): None for each in own if not trained.isdisjoint(params_in(each))})


def _defines_forward(module_class):
    return "forward" in vars(module_class) and not module_class.__module__.startswith("torch.")


def all_modules():
    """Return all modules of the process, which takes about 0.05 s."""
    return all_objects(torch.nn.Module)


def params_in(module):
    """Return the ids of a module's params as a set."""
    return {id(param) for param in module.parameters()}


def outermost(params, modules=None):
    """Return the outermost modules that have one of the params, without wrappers.

    Args:
        params: their ids.
        modules: what ``all_modules`` returned just now, or None.
    """
    modules = {id(each): each for each in map(unwrapped, all_modules() if modules is None else modules)}
    return _without_nested([each for each in modules.values() if not params_in(each).isdisjoint(params)])


def _without_nested(modules):
    within = {id(child) for each in modules for child in each.modules() if child is not each}
    return [each for each in modules if id(each) not in within]


def holders(optimizers, model):
    """Return the modules other than ``model`` that have params of optimizers, outermost first if nested.

    Containers without their own ``forward``, which are never called, are replaced by their children.

    Args:
        optimizers: a list.
        model: the module that is being called; modules that contain it do not count.
    """
    covered = params_in(model)
    order = [key for key in trained_params(optimizers) if key not in covered]
    if not order:
        return []
    missing, inside = set(order), {id(module) for module in model.modules()}
    modules = {id(each): each for each in map(unwrapped, all_modules()) if id(each) not in inside}
    found = [each for each in modules.values() if params_in(each) & missing]
    found = [each for each in found if all(module is not model for module in each.modules())]
    called = [part for each in _without_nested(found) for part in _parts(each, missing)]
    position = {key: index for index, key in enumerate(order)}
    return sorted(called, key=lambda each: min(position[key] for key in params_in(each) & missing))


def _parts(module, missing):
    if type(module).forward is not torch.nn.Module.forward:
        return [module]
    return [part for child in module.children() if params_in(child) & missing for part in _parts(child, missing)]
