"""The replaced methods of an optimizer: ``step``, ``zero_grad``, ``add_param_group``, ``load_state_dict`` and others.

``attach`` installs them. Closures are wrapped too, so that an overflow in one skips the step.
"""

import copy
import functools
import inspect
import sys
from types import FunctionType, MethodType

import torch

from ...errors import AmpError, GradientOverflowError
from ...support.patching import PatchStack
from ..master_weights import pickled_optimizers
from . import apex_checkpoints, chunked_step
from .amp_stash import STASH, AmpStash
from .record import record_of


class _Skip(Exception):
    """Raised in a closure whose gradients overflowed, to leave ``step``; holds the closure's loss."""

    def __init__(self, loss):
        super().__init__("the closure's gradients overflowed")
        self.loss = loss


class ReplacedMethods:
    """The methods that an optimizer had before ``attach``.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer):
        self.patches = PatchStack()  # restores them
        self.sets_to_none = _default_of_set_to_none(optimizer.zero_grad)  # what ``zero_grad`` does by default
        self._originals = {name: getattr(optimizer, name, None) for name in _REPLACEMENTS}

    def __getitem__(self, name):
        return self._originals[name]


def attach(record, patches):
    """Set the ``AmpStash`` of an optimizer and replace the optimizer's methods.

    Args:
        record: an ``OptimizerRecord``.
        patches: the ``PatchStack`` that undoes it.
    """
    optimizer = record.optimizer
    record.methods = methods = ReplacedMethods(optimizer)
    # Kept by the record, and so by the optimizer itself: the original methods refer to the optimizer.
    patches.defer_weakly(methods.patches.undo)
    methods.patches.set(optimizer, STASH, AmpStash(record))
    for name, replacement in _REPLACEMENTS.items():
        methods.patches.set(optimizer, name, _bound(optimizer, replacement, methods[name]))


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
    record = self._amp_stash.record
    session = record.session
    if not (args or kwargs or session.observers or record.has_state_to_update()):
        return session.process_casts.run_step(record.methods["step"], record.leaf_params)
    record.gradients.prepare_step()
    for observer in session.observers:
        observer.before_step(record)
    record.gradients.check_unscaled()
    flag = record.skips.take_found_inf()
    if flag is None and record.skips.take():
        _mark_step_called(self)
        record.finish_step(stepped=False)
        return None
    args, kwargs = _watch_closure(record, args, kwargs)
    try:
        step = chunked_step.in_chunks(record, record.methods["step"])
        if flag is not None:
            step = functools.partial(_step_with, self, flag, step)
        with session.masters.writes.paused():
            result = session.process_casts.run_step(functools.partial(step, *args, **kwargs), record.leaf_params)
    except _Skip as skip:
        record.finish_step(stepped=False)
        return skip.loss
    except BaseException:
        record.masters.round_into_models()  # the optimizer may have changed masters before it raised
        raise
    record.finish_step(stepped=True)
    return result


def amp_step(optimizer, *args, **kwargs):
    """Do what the replaced ``step`` does, also where a trainer has put back the method from before ``initialize``."""
    return _step(optimizer, *args, **kwargs)


def is_stepping(optimizer):
    """Return whether this thread is within the replaced ``step`` of an optimizer."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _step.__code__ and frame.f_locals["self"] is optimizer:
            return True
        frame = frame.f_back
    return False


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


def _watch_closure(record, args, kwargs):
    if callable(kwargs.get("closure")):
        return args, dict(kwargs, closure=_watched(record, kwargs["closure"]))
    if args and callable(args[0]):
        return (_watched(record, args[0]),) + args[1:], kwargs
    return args, kwargs


def _watched(record, closure):
    """Return a closure for the optimizer to call, which leaves the step if the gradients overflow.

    The step can be skipped as long as the optimizer has changed nothing. Optimizers that change weights and evaluate
    the closure again (LBFGS, SAM) get the changed weights in the model, but an overflow then raises. Version counters
    show whether weights changed before the first evaluation. Before later ones they count as changed, since
    ``param.data.add_`` changes no version counter.
    """
    params = [param for group in record.optimizer.param_groups for param in group["params"]]
    versions = [param._version for param in params]
    closure = record.session.cast_backend.bind_casts(closure)
    has_run = False

    def watched():
        nonlocal has_run
        moved = has_run or [param._version for param in params] != versions
        if moved:
            record.masters.round_into_models()
        with torch.enable_grad(), record.session.masters.writes.resumed():
            loss = closure()
        has_run = True
        record.gradients.prepare_step()
        record.gradients.check_unscaled()
        if record.skips.take():
            if moved:
                raise GradientOverflowError(
                    f"the gradients overflowed when {type(record.optimizer).__name__} evaluated its closure again, "
                    "after it had moved the weights: this step can neither be finished nor skipped. Optimizers of "
                    "this kind need a loss scale that does not overflow: initialize with a static loss_scale, or use "
                    "O0, O4 or O5."
                )
            raise _Skip(loss)
        return loss

    return watched


def _zero_grad(self, *args, **kwargs):
    record = self._amp_stash.record
    zero_grad, default = record.methods["zero_grad"], record.methods.sets_to_none
    if default is not None:
        stated = kwargs["set_to_none"] if "set_to_none" in kwargs else args[0] if args else default
    else:  # torch before 1.7, and wrappers: no such argument, so it is implemented here
        stated = kwargs.pop("set_to_none", args[0] if args else False)
        args = ()
    record.gradients.clear(stated)  # first: half gradients that it leaves would be widened to be cleared
    result = zero_grad(*args, **kwargs)
    if default is None and stated:
        for param in [param for group in self.param_groups for param in group["params"]]:
            param.grad = None
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
    record = self._amp_stash.record
    result = record.methods["add_param_group"](*args, **kwargs)
    try:
        if record.masters.are_stored:
            chunked_step.check(self)
        pairs = record.masters.make_of_groups(self.param_groups[before:])
    except AmpError:
        del self.param_groups[before:]
        raise
    record.find_process_groups()
    record.session.add_masters(record, pairs)
    return result


def _load_state_dict(self, state_dict, *args, **kwargs):
    record = self._amp_stash.record
    masters = apex_checkpoints.targets(record, state_dict)
    result = record.methods["load_state_dict"](apex_checkpoints.inner_state(state_dict), *args, **kwargs)
    apex_checkpoints.copy_masters(record, masters)
    return result


def _deepcopy(self, memo):
    """Copy the record with the optimizer; torch would leave it out. The copy trains independently."""
    record = self._amp_stash.record
    record.masters.refresh()
    record.gradients.take_changes()
    record.masters.restore_values()
    with PatchStack() as patches:
        patches.set(self, "__deepcopy__", record.methods["__deepcopy__"])
        patches.set(self, "__getstate__", lambda: _own_state(record))
        twin = copy.deepcopy(self, memo)
    if record_of(twin) is None:
        record.session.add_copy(record.copied_to(twin, memo))
    return twin


def _getstate(self):
    record = self._amp_stash.record
    record.masters.restore_values()
    return pickled_optimizers.state_of(record, _own_state(record))


def _own_state(record):
    """Return what the optimizer's own ``__getstate__`` returns, without what ``attach`` has set on it."""
    getstate = record.methods["__getstate__"]  # absent before Python 3.11, unless the class has one
    state = vars(record.optimizer) if getstate is None else getstate()
    if not isinstance(state, dict):
        return state
    return {name: value for name, value in state.items() if name != STASH and name not in _REPLACEMENTS}


# Apex's names for the parts of an iteration. Clients with loops of their own call them (fairseq, NVIDIA's BERT).


def client_method(record, name):
    """Return what a client has put in place of a method that ``attach`` has set on an optimizer, or None."""
    method = getattr(record.optimizer, name)
    return None if getattr(method, "__wrapped__", None) is _REPLACEMENTS[name] else method


def _amp_lazy_init(self):
    """Refresh the masters, which ``initialize`` has made and which follow the half params until the first step."""
    self._amp_stash.record.masters.refresh(new_only=True)


def _prepare_amp_backward(self):
    record = self._amp_stash.record
    scaler = record.configuration.scalers[0]
    record.gradients.begin()
    with torch.no_grad():
        record.gradients.unscale_delayed(scaler, scaler.loss_scale(), set(), set())
        record.gradients.enter(scaler, scaler.loss_scale(), set())


def _post_amp_backward(self, scaler):
    with torch.no_grad():
        self._amp_stash.record.gradients.leave(scaler, scaler.loss_scale(), set())


def _master_params_to_model_params(self):
    self._amp_stash.record.masters.finish_step()


_REPLACEMENTS = {
    "step": _step,
    "zero_grad": _zero_grad,
    "add_param_group": _add_param_group,
    "load_state_dict": _load_state_dict,
    "__deepcopy__": _deepcopy,
    "__getstate__": _getstate,
    "_amp_lazy_init": _amp_lazy_init,
    "_lazy_init_maybe_master_weights": _amp_lazy_init,
    "_prepare_amp_backward": _prepare_amp_backward,
    "_post_amp_backward": _post_amp_backward,
    "_master_params_to_model_params": _master_params_to_model_params,
}
