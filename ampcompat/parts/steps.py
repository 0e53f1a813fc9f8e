"""Put an adapter in force: an optimizer's ``step``, ``zero_grad``, ``add_param_group`` and ``load_state_dict``, replaced once.

Owns: the replaced methods, and how a closure runs inside a step.
Must not touch: gradients and masters, which are the adapter's.
The surprise: the methods are bound, wrapped ones. Learning-rate schedulers look at ``step.__func__`` and at the marks that they
left on ``step``; any other form makes them warn or crash.
"""

import copy
import functools
import inspect
from types import MethodType

import torch

from ..errors import AmpError, GradientOverflowError
from . import old_layouts
from .optimizers import SLOT
from .patching import PatchStack


class _Skip(Exception):
    """Carries a closure's loss out of a step that must not go on."""

    def __init__(self, loss):
        super().__init__("the closure's gradients overflowed")
        self.loss = loss


def attach(adapter, patches):
    """Hang ``adapter`` on its optimizer and replace the optimizer's methods.

    Args:
        adapter: an ``OptimizerAdapter``.
        patches: the ``PatchStack`` that undoes it.
    """
    optimizer = adapter.optimizer
    patches.set(optimizer, SLOT, adapter)
    adapter.sets_to_none = _default_of_set_to_none(optimizer.zero_grad)
    for name, replacement in _REPLACEMENTS.items():
        original = getattr(optimizer, name, None)
        if original is not None:
            adapter.replaced[name] = original
        patches.set(optimizer, name, _bound(optimizer, replacement, original))


def _bound(optimizer, replacement, original):
    def method(self, *args, **kwargs):
        return replacement(self, *args, **kwargs)

    # Copies the marks of schedulers along with the name, the docstring and the signature.
    functools.wraps(replacement if original is None else original)(method)
    return MethodType(method, optimizer)


def _step(self, *args, **kwargs):
    adapter = self._amp_stash
    for observer in adapter.links.observers:
        observer.before_step(adapter)
    adapter.check_unscaled()
    flag = adapter.skips.take_flag()
    if flag is None and adapter.skips.take():
        _tell_schedulers(self)
        adapter.finish_step(stepped=False)
        return None
    args, kwargs = _watch_closure(adapter, args, kwargs)
    try:
        with adapter.links.stepping():
            step = adapter.replaced["step"]
            if flag is None:
                result = step(*args, **kwargs)
            else:
                result = _stepped_with(self, flag, step, args, kwargs)
    except _Skip as skip:
        adapter.finish_step(stepped=False)
        return skip.loss
    except BaseException:
        adapter.masters_to_models()  # what the optimizer changed before it failed is changed in the model too
        raise
    adapter.finish_step(stepped=True)
    return result


def _stepped_with(optimizer, flag, step, args, kwargs):
    """Step with ``flag`` as the optimizer's ``found_inf``: it leaves the weights alone where that is 1."""
    optimizer.grad_scale, optimizer.found_inf = None, flag
    try:
        return step(*args, **kwargs)
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def _tell_schedulers(optimizer):
    """Count a skipped step as one for the check that schedulers make of the order of calls."""
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        optimizer._opt_called = True
    if hasattr(optimizer, "_step_count"):
        optimizer._step_count += 1


def _watch_closure(adapter, args, kwargs):
    if callable(kwargs.get("closure")):
        return args, dict(kwargs, closure=_watched(adapter, kwargs["closure"]))
    if args and callable(args[0]):
        return (_watched(adapter, args[0]),) + args[1:], kwargs
    return args, kwargs


def _watched(adapter, closure):
    """Return a closure for the optimizer to call, which leaves the step if the gradients overflow.

    That is a clean skip as long as the optimizer has changed nothing. One that evaluates the closure again after moving the
    weights (LBFGS, SAM) sees the moved weights in the model, but an overflow then cannot be skipped any more. Versions tell
    whether weights moved before the first evaluation; later ones count as moved, since ``param.data.add_`` leaves no trace.
    """
    params = [param for group in adapter.optimizer.param_groups for param in group["params"]]
    versions = [param._version for param in params]
    closure = adapter.links.resumed(closure)
    losses = []

    def watched():
        moved = bool(losses) or [param._version for param in params] != versions
        if moved:
            adapter.masters_to_models()
        with torch.enable_grad():
            loss = closure()
        losses.append(loss)
        adapter.check_unscaled()
        if adapter.skips.take():
            if moved:
                raise GradientOverflowError(
                    "the gradients overflowed when {} evaluated its closure again, after it had moved the weights: this "
                    "step can neither be finished nor skipped. Optimizers of this kind need a loss scale that does "
                    "not overflow: initialize with a static loss_scale, or use O0, O4 or O5.".format(
                        type(adapter.optimizer).__name__
                    )
                )
            raise _Skip(loss)
        return loss

    return watched


def _zero_grad(self, *args, **kwargs):
    adapter = self._amp_stash
    zero_grad = adapter.replaced["zero_grad"]
    if adapter.sets_to_none is not None:
        result = zero_grad(*args, **kwargs)
        stated = kwargs["set_to_none"] if "set_to_none" in kwargs else args[0] if args else adapter.sets_to_none
    else:  # torch before 1.7, and wrappers: theirs knows no choice, so the choice is ours
        stated = kwargs.pop("set_to_none", args[0] if args else False)
        result = zero_grad(**kwargs)
        for param in [param for group in self.param_groups for param in group["params"]] if stated else ():
            param.grad = None
    adapter.forget_gradients(stated)
    return result


def _default_of_set_to_none(zero_grad):
    """Return what an optimizer's ``zero_grad`` does by default, or None if it takes no such argument."""
    try:
        parameter = inspect.signature(zero_grad).parameters.get("set_to_none")
    except (TypeError, ValueError):
        return None
    return None if parameter is None else bool(parameter.default)


def _add_param_group(self, *args, **kwargs):
    before = len(self.param_groups)
    adapter = self._amp_stash
    result = adapter.replaced["add_param_group"](*args, **kwargs)
    try:
        for group in self.param_groups[before:]:
            adapter.adopt(group)
    except AmpError:
        del self.param_groups[before:]
        raise
    return result


def _load_state_dict(self, state_dict, *args, **kwargs):
    adapter = self._amp_stash
    masters = old_layouts.targets(adapter, state_dict)
    result = adapter.replaced["load_state_dict"](old_layouts.inner_state(state_dict), *args, **kwargs)
    old_layouts.copy_masters(adapter, masters)
    return result


def _deepcopy(self, memo):
    """Copy the adapter too, which torch leaves out of an optimizer's state: a copied model and optimizer train on alone."""
    with PatchStack() as patches:
        patches.set(self, "__deepcopy__", self._amp_stash.replaced.get("__deepcopy__"))
        twin = copy.deepcopy(self, memo)
    if SLOT not in vars(twin):
        self._amp_stash.links.on_copy(copy.deepcopy(self._amp_stash, memo))
    return twin


# Apex's own names for the stages. Clients with training loops of their own call them (fairseq, NVIDIA's BERT).


def _amp_lazy_init(self):
    """Do nothing: masters are made in ``initialize``."""


def _prepare_amp_backward(self):
    adapter = self._amp_stash
    scaler = adapter.links.first_scaler()
    with torch.no_grad():
        adapter.before_backward(scaler, scaler.loss_scale(), set())


def _post_amp_backward(self, scaler):
    with torch.no_grad():
        self._amp_stash.after_backward(scaler, scaler.loss_scale(), set())


def _master_params_to_model_params(self):
    self._amp_stash.masters_to_models()


_REPLACEMENTS = {
    "step": _step,
    "zero_grad": _zero_grad,
    "add_param_group": _add_param_group,
    "load_state_dict": _load_state_dict,
    "__deepcopy__": _deepcopy,
    "_amp_lazy_init": _amp_lazy_init,
    "_lazy_init_maybe_master_weights": _amp_lazy_init,
    "_prepare_amp_backward": _prepare_amp_backward,
    "_post_amp_backward": _post_amp_backward,
    "_master_params_to_model_params": _master_params_to_model_params,
}
