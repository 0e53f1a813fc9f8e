"""``amp_step``, which replaces ``optimizer.step``: it skips the step after an overflow, in a closure too.

Optimizers have other public methods. Some write to the params: ``eval`` and ``train`` of schedule-free optimizers,
``first_step`` and ``second_step`` of SAM. At O2 and O5 these are the masters, so ``initialize`` replaces every such
method: before it the masters have what the script wrote to the half params, after it the half params are the masters,
rounded. One with "step" in its name steps on gradients as ``step`` does, at every level: it gets true ones, and is
skipped if they overflowed. An optimizer that is made around this one (Lookahead) writes to the masters after the inner
step; hooks that torch calls after every step round them.
"""

import functools
import sys
import warnings
from types import FunctionType, MethodType

import torch

from ...errors import AmpError, GradientOverflowError
from ...support import tensor_lists
from ...support.live_objects import WeakList
from ...support.script_frames import script_line
from ...support.torch_compat import step_hooks
from ...support.torch_compat.thread_blocks import grad_enabled
from ..casting import torch_compile
from . import chunked_step
from .optimizer_record import record_of


class _Skip(Exception):
    """Raised in a closure whose gradients overflowed, to leave ``step``; holds the closure's loss."""

    def __init__(self, loss):
        super().__init__("the closure's gradients overflowed")
        self.loss = loss


def amp_step(self, *args, **kwargs):
    """Replaces ``optimizer.step``: skip the step after an overflow; otherwise step, and round masters into the model.

    Also called for an optimizer on which a trainer has put back the method from before ``initialize``.
    """
    return run_step(self._amp_stash.record, args, kwargs)


def run_step(record, args, kwargs):
    """Step as ``amp_step`` does; ``torch.compile`` leaves this function and what it calls alone."""
    session = record.session
    if not (args or kwargs or session.observers or record.has_state_to_update()):
        return record.run(record.methods["step"])
    if args or kwargs:
        _check_arguments(record, args, kwargs)
    record.gradients.prepare_step()
    for observer in session.observers:
        observer.before_step(record)
    flag = record.skips.take_found_inf()
    if flag is None and record.skips.take():
        _mark_step_called(record.optimizer)
        record.finish_step(stepped=False)
        return None
    if args or kwargs:
        args, kwargs = _watch_closure(record, args, kwargs)
    try:
        step = record.methods["step"]
        if record.masters.are_stored:
            step = chunked_step.ChunkedStep(record, step)
        if flag is not None:
            step = functools.partial(_step_with, record.optimizer, flag, step)
        result = record.run(functools.partial(step, *args, **kwargs))
    except _Skip as skip:
        record.finish_step(stepped=False)
        return skip.loss
    except BaseException:
        record.masters.round_into_models()  # the optimizer may have changed masters before it raised
        raise
    record.finish_step(stepped=True)
    return result


def _check_arguments(record, args, kwargs):
    """Raise if ``step`` is to update one half param: the optimizer has its master instead."""
    given = {id(each) for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)}
    if given and any([id(pair.model) in given for pair in record.pairs()]):
        raise AmpError(
            "{}:{}: {}.step() got a param of the model, whose weights are half at {}: the optimizer steps on float32 "
            "master weights. Step on all params at once, or use O0 or O4.".format(
                *script_line(), type(record.optimizer).__name__, record.configuration.policy.opt_level
            )
        )


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
        with grad_enabled(True), record.session.masters.writes.resumed:
            loss = closure()
        has_run = True
        record.gradients.prepare_step()
        if record.skips.take():
            if moved:
                raise _overflow_within_step("when {} evaluated its closure again, after it", record)
            raise _Skip(loss)
        return loss

    return watched


def _overflow_within_step(place, record):
    return GradientOverflowError(
        f"the gradients overflowed {place.format(type(record.optimizer).__name__)} had moved the weights: this step "
        "can neither be finished nor skipped. Optimizers of this kind need a loss scale that does not overflow: "
        "initialize with a static loss_scale, or use O0, O4 or O5."
    )


def own_method_names(optimizer):
    """Return the names of the public methods of an optimizer's class that no optimizer of torch has."""
    found = {}
    for kind in type(optimizer).__mro__:
        if kind not in (torch.optim.Optimizer, object):
            found.update({name: value for name, value in vars(kind).items() if name not in found})
    return [
        name
        for name, value in found.items()
        if isinstance(value, FunctionType) and not name.startswith("_") and not hasattr(torch.optim.Optimizer, name)
    ]


def replacement_of_own(record, name, original):
    """Return the bound method that replaces an optimizer's own method ``name``; None to leave it.

    Args:
        record: the ``OptimizerRecord``.
        original: the bound method.
    """
    if not ("step" in name or record.masters):
        return None

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        own = record_of(self)
        called = functools.partial(own.methods[name], *args, **kwargs)
        return called() if own.is_running else run_method(own, name, called)

    return MethodType(method, record.optimizer)


def run_method(record, name, called):
    """Call one of these methods; ``torch.compile`` leaves this function and what it calls alone."""
    if "step" in name:
        return _run_step(record, name, called)
    record.masters.refresh()
    result = record.run(called)
    record.masters.show_all()
    return result


def _run_step(record, name, called):
    """Call a method that steps, unless the gradients overflowed.

    Of two such methods that are called in turn the second finishes what the first began.
    """
    record.gradients.prepare_step()
    begun, was_skipped = record.begun_step or (name, False)
    is_skipped = record.skips.take()
    if begun == name:
        record.begun_step = name, is_skipped
    else:
        record.begun_step = None
        if is_skipped and not was_skipped:
            raise _overflow_within_step(f"between {begun} and {name} of {{}}, after the first", record)
        is_skipped = is_skipped or was_skipped
    result = None if is_skipped else record.run(called)
    record.finish_step(stepped=not is_skipped)
    return result


def _warn_of_half_params(optimizer, models):
    params = [param for model in models for param in model.parameters()]
    halves = {id(param) for param in params if tensor_lists.is_narrower(param, torch.float32)}
    if any([id(param) in halves for group in optimizer.param_groups for param in group["params"]]):
        file, line = script_line()
        warnings.warn(
            f"{file}:{line}: {type(optimizer).__name__}.step() updates half weights of a model, which lose small "
            "updates: amp did not get this optimizer, so it has no float32 master weights. Pass it to amp.initialize.",
            stacklevel=2,
        )


def keep_from_compiler(patches):
    """Make ``torch.compile`` leave steps alone, ``step`` itself too; undone by ``patches``."""
    functions = [(sys.modules[__name__], function.__name__) for function in (run_method, run_step)]
    torch_compile.patch_compile(patches, uncompiled=functions)


def round_after_steps(session, patches):
    """Round the masters that the step of any other optimizer has written; undone by ``patches``. Needs torch 2.0.

    One that has half params itself is warned of.
    """
    looked_at = WeakList()

    def after_step(optimizer, args, kwargs):
        if record_of(optimizer) is None:
            session.masters.show_written()
            if optimizer not in looked_at:
                looked_at.add(optimizer)
                _warn_of_half_params(optimizer, session.models)

    if step_hooks.exist():
        step_hooks.register(patches, after=after_step, once=False)
