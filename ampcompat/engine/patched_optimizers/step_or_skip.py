"""``amp_step``, which replaces ``optimizer.step``: it skips the step after an overflow, in a closure too."""

import functools

import torch

from ...errors import AmpError, GradientOverflowError
from ...support.script_frames import script_line
from . import chunked_step


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
        record.is_running = True
        try:
            return session.process_casts.run_step(record.methods["step"])
        finally:
            record.is_running = False
    if args or kwargs:
        _check_arguments(record, args, kwargs)
    record.gradients.prepare_step()
    for observer in session.observers:
        observer.before_step(record)
    record.gradients.check_unscaled()
    flag = record.skips.take_found_inf()
    if flag is None and record.skips.take():
        _mark_step_called(record.optimizer)
        record.finish_step(stepped=False)
        return None
    if args or kwargs:
        args, kwargs = _watch_closure(record, args, kwargs)
    try:
        step = chunked_step.in_chunks(record, record.methods["step"])
        if flag is not None:
            step = functools.partial(_step_with, record.optimizer, flag, step)
        with record.running():
            result = session.process_casts.run_step(functools.partial(step, *args, **kwargs))
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
