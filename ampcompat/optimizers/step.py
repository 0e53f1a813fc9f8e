"""The replaced methods of an optimizer: ``step``, ``zero_grad``, ``add_param_group``, ``load_state_dict`` and others.

``attach`` installs them. Closures are wrapped too, so that an overflow in one skips the step.
"""

import copy
import functools
import inspect
from types import FunctionType, MethodType

import torch

from ..errors import AmpError, GradientOverflowError
from ..patching import PatchStack
from . import apex_checkpoints
from .adapter import SLOT
from .plain_backward import catch_up


class _Skip(Exception):
    """Raised in a closure whose gradients overflowed, to leave ``step``; holds the closure's loss."""

    def __init__(self, loss):
        super().__init__("the closure's gradients overflowed")
        self.loss = loss


def attach(adapter, patches):
    """Set ``adapter`` as ``_amp_stash`` of its optimizer and replace the optimizer's methods.

    Args:
        adapter: an ``OptimizerAdapter``.
        patches: the ``PatchStack`` that undoes it.
    """
    optimizer = adapter.optimizer
    # Kept by the adapter, and so by the optimizer itself: the original methods refer to the optimizer.
    patches.defer_weakly(adapter.methods.undo)
    patches = adapter.methods
    patches.set(optimizer, SLOT, adapter)
    adapter.sets_to_none = _default_of_set_to_none(optimizer.zero_grad)
    for name, replacement in _REPLACEMENTS.items():
        original = getattr(optimizer, name, None)
        if original is not None:
            adapter.replaced[name] = original
        patches.set(optimizer, name, _bound(optimizer, replacement, original))


def _bound(optimizer, replacement, original):
    # A function of its own, as each has its own attributes; not a wrapper, which would be one more call at every step.
    method = FunctionType(replacement.__code__, replacement.__globals__)
    # A wrapped, bound method: learning-rate schedulers read ``step.__func__`` and the attributes that they have set on
    # ``step``, and warn or fail with anything else. ``wraps`` copies these attributes.
    functools.wraps(replacement if original is None else original)(method)
    if original is not None:
        _copy_signature(original, method)
    return MethodType(method, optimizer)


def _copy_signature(original, method):
    """Give the function ``method`` the signature of the bound ``original``, plus ``self``."""
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError):  # a callable without a signature
        return
    rest = list(signature.parameters.values())
    if rest and rest[0].name == "self":  # a scheduler's wrapper is a function that takes ``self``
        del rest[0]
    is_positional = bool(rest) and rest[0].kind is inspect.Parameter.POSITIONAL_ONLY
    kind = inspect.Parameter.POSITIONAL_ONLY if is_positional else inspect.Parameter.POSITIONAL_OR_KEYWORD
    method.__signature__ = signature.replace(parameters=[inspect.Parameter("self", kind)] + rest)


def _step(self, *args, **kwargs):
    adapter = self._amp_stash
    observers = adapter.callbacks.observers
    if not (args or kwargs or observers or adapter.has_state_to_update()):
        return adapter.callbacks.run_step(adapter.replaced["step"], adapter.leaf_params)
    catch_up(adapter)
    for observer in observers:
        observer.before_step(adapter)
    adapter.check_unscaled()
    flag = adapter.skips.take_found_inf()
    if flag is None and adapter.skips.take():
        _mark_step_called(self)
        adapter.finish_step(stepped=False)
        return None
    args, kwargs = _watch_closure(adapter, args, kwargs)
    try:
        step = adapter.replaced["step"]
        if flag is not None:
            step = functools.partial(_step_with, self, flag, step)
        with adapter.callbacks.writes.paused():
            result = adapter.callbacks.run_step(functools.partial(step, *args, **kwargs), adapter.leaf_params)
    except _Skip as skip:
        adapter.finish_step(stepped=False)
        return skip.loss
    except BaseException:
        adapter.masters_to_models()  # the optimizer may have changed masters before it raised
        raise
    adapter.finish_step(stepped=True)
    return result


def _step_with(optimizer, flag, step, *args, **kwargs):
    """Step with ``flag`` as the optimizer's ``found_inf``: the optimizer changes no weights if it is 1."""
    optimizer.grad_scale, optimizer.found_inf = None, flag
    try:
        return step(*args, **kwargs)
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def _mark_step_called(optimizer):
    """Count a skipped step as a step, so that learning-rate schedulers do not warn about the order of calls."""
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

    The step can be skipped as long as the optimizer has changed nothing. Optimizers that change weights and evaluate
    the closure again (LBFGS, SAM) get the changed weights in the model, but an overflow then raises. Version counters
    show whether weights changed before the first evaluation. Before later ones they count as changed, since
    ``param.data.add_`` changes no version counter.
    """
    params = [param for group in adapter.optimizer.param_groups for param in group["params"]]
    versions = [param._version for param in params]
    closure = adapter.callbacks.bind_casts(closure)
    has_run = False

    def watched():
        nonlocal has_run
        moved = has_run or [param._version for param in params] != versions
        if moved:
            adapter.masters_to_models()
        with torch.enable_grad(), adapter.callbacks.writes.resumed():
            loss = closure()
        has_run = True
        catch_up(adapter)
        adapter.check_unscaled()
        if adapter.skips.take():
            if moved:
                raise GradientOverflowError(
                    "the gradients overflowed when {} evaluated its closure again, after it had moved the weights: "
                    "this step can neither be finished nor skipped. Optimizers of this kind need a loss scale that "
                    "does not overflow: initialize with a static loss_scale, or use O0, O4 or O5.".format(
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
    else:  # torch before 1.7, and wrappers: no such argument, so it is implemented here
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
        adapter.make_masters_of_groups(self.param_groups[before:])
    except AmpError:
        del self.param_groups[before:]
        raise
    adapter.callbacks.group_added(adapter)
    return result


def _load_state_dict(self, state_dict, *args, **kwargs):
    adapter = self._amp_stash
    masters = apex_checkpoints.targets(adapter, state_dict)
    result = adapter.replaced["load_state_dict"](apex_checkpoints.inner_state(state_dict), *args, **kwargs)
    apex_checkpoints.copy_masters(adapter, masters)
    return result


def _deepcopy(self, memo):
    """Copy the adapter with the optimizer; torch would leave it out. The copy trains independently."""
    self._amp_stash.refresh_masters()
    with PatchStack() as patches:
        patches.set(self, "__deepcopy__", self._amp_stash.replaced.get("__deepcopy__"))
        twin = copy.deepcopy(self, memo)
    if SLOT not in vars(twin):
        self._amp_stash.callbacks.optimizer_copied(copy.deepcopy(self._amp_stash, memo))
    return twin


# Apex's names for the parts of an iteration. Clients with loops of their own call them (fairseq, NVIDIA's BERT).


def client_method(adapter, name):
    """Return what a client has put in place of a method that ``attach`` has set on an optimizer, or None."""
    method = getattr(adapter.optimizer, name)
    return None if getattr(method, "__wrapped__", None) is _REPLACEMENTS[name] else method


def _amp_lazy_init(self):
    """Refresh the masters, which ``initialize`` has made and which follow the half params until the first step."""
    self._amp_stash.refresh_masters(new_only=True)


def _prepare_amp_backward(self):
    adapter = self._amp_stash
    scaler = adapter.callbacks.first_scaler()
    adapter.begin()
    with torch.no_grad():
        adapter.unscale_delayed(scaler, scaler.loss_scale(), set(), set())
        adapter.before_backward(scaler, scaler.loss_scale(), set())


def _post_amp_backward(self, scaler):
    with torch.no_grad():
        self._amp_stash.after_backward(scaler, scaler.loss_scale(), set())


def _master_params_to_model_params(self):
    self._amp_stash.mark_masters_synced()
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
