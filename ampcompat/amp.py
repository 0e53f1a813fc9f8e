"""Apex's ``amp``, with its names, signatures and defaults. The functions call the current session.

``from apex import amp`` (under ``python -m ampcompat run`` or after ``install``) and ``from ampcompat import amp`` are
the same functions on the same session.

A training step, at any level and on any device:

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for input, target in batches:
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
"""

from collections import OrderedDict

import torch

from .apex.properties import O0, O1, O2, O3, O4, O5, Properties, opt_levels
from .apex.state_view import AmpStateModule
from .diagnostics.overflow_diagnosis import add_diagnosis
from .diagnostics.skip_limit import set_skip_limit
from .errors import AmpError, hide_internal_frames
from .op_table import rules
from .opt_levels import level_named
from .optimizers import plain_backward
from .training import registrations, state
from .training.accumulation import Accumulation
from .training.disabled import DisabledSession
from .training.request import make_request
from .training.session import new_session

__all__ = [
    "O0",
    "O1",
    "O2",
    "O3",
    "O4",
    "O5",
    "Properties",
    "accumulate",
    "bfloat16_function",
    "disable_casts",
    "float_function",
    "half_function",
    "init",
    "initialize",
    "lists",
    "load_state_dict",
    "master_params",
    "opt_levels",
    "promote_function",
    "register_bfloat16_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
    "step_was_skipped",
]

_amp_state = AmpStateModule("ampcompat.amp._amp_state")

#: The op table as Apex's lists. What is appended or removed before ``initialize`` takes effect.
lists = state.lists


@hide_internal_frames
def initialize(
    models,
    optimizers=None,
    enabled=True,
    opt_level="O1",
    cast_model_type=None,
    patch_torch_functions=None,
    keep_batchnorm_fp32=None,
    master_weights=None,
    loss_scale=None,
    cast_model_outputs=None,
    num_losses=1,
    verbosity=1,
    min_loss_scale=None,
    max_loss_scale=2.0**24,
    *,
    patch_torch_functions_type=None,
    keep_fp32=None,
    init_scale=None,
    growth_factor=None,
    backoff_factor=None,
    growth_interval=None,
    hysteresis=None,
    skip_static_overflow=False,
    max_skips=50,
    raise_on_max_skips=False,
    process_group=None,
    diagnose=False,
):
    """Prepare models and optimizers for mixed-precision training, in place.

    Args:
        models: a float32 ``torch.nn.Module`` on any device, or a list of them, not yet wrapped for data parallelism.
        optimizers: an optimizer, a list of them, or None.
        enabled: if False, all functions of ``amp`` do nothing afterwards.
        opt_level: "O0" (float32), "O1" (casts around functions), "O2" (half weights, float32 masters), "O3" (half),
            "O4" and "O5" (O1 and O2 with bfloat16).
        cast_model_type: dtype of the weights instead of the level's.
        patch_torch_functions: whether functions cast their inputs, instead of the level's value.
        keep_batchnorm_fp32: True, False, "True" or "False", instead of the level's value.
        master_weights: whether the optimizer gets float32 masters of half params, instead of the level's value.
        loss_scale: a positive number, a string of one, or "dynamic", instead of the level's.
        cast_model_outputs: dtype that the models' floating outputs are cast to, at any level.
        num_losses: the number of losses that are passed to ``scale_loss``, each with its own scaler.
        verbosity: 0 prints nothing.
        min_loss_scale: dynamic scales stay at or above it.
        max_loss_scale: dynamic scales stay at or below it.
        patch_torch_functions_type: dtype that functions cast to at O1 and O4, instead of the level's.
        keep_fp32: module types, modules, name patterns (``fnmatch``) or predicates ``f(name, module)``. Layers that
            match keep float32 weights and compute in float32.
        init_scale: the first dynamic scale; Apex's 2**16 if None.
        growth_factor: what a dynamic scale is multiplied by to grow; 2 if None.
        backoff_factor: what it is multiplied by after an overflow; 0.5 if None.
        growth_interval: good steps in a row before it grows; 2000 if None.
        hysteresis: number of overflows since its last growth after which it is lowered; 1 if None.
        skip_static_overflow: skip steps that overflow under a static scale too; Apex never did.
        max_skips: after so many skipped steps in a row print once why lowering the scale does not help.
        raise_on_max_skips: raise ``FloatingPointError`` (and ``RuntimeError``) there instead.
        process_group: True (all ranks) or a ``torch.distributed`` group whose ranks all skip a step if the gradients of
            one of them overflow. Needed where gradients differ between ranks, as with sharded params; all-reduced
            gradients have the inf on every rank. Every rank of the group must leave ``scale_loss`` equally often.
        diagnose: for every skipped step print where inf or nan came first, how large the values were before, and what
            to try. Costs a few small operations per module and step, and no synchronization until a step is skipped.
            See ``ampcompat.gradient_histogram`` too.

    Returns:
        ``models``, or ``(models, optimizers)`` where optimizers were given: the same objects in the same shapes.

    Raises:
        RuntimeError: an unknown opt level, an override that makes no sense for it, a model that is half or wrapped, an
            optimizer that was initialized before. Nothing is changed then.
        TypeError: models or optimizers of other types.
    """
    stated = dict(locals())
    if not enabled:
        _disable(verbosity)
        return models if optimizers is None else (models, optimizers)
    session = state.current()
    if session is None or not session.enabled:
        session = new_session()
    request = make_request(stated, session.overrides, session.dtypes)
    session.initialize(request, verbosity)
    is_diagnosed_run = state.command_line().get("diagnose", False)
    if request.diagnose or is_diagnosed_run:
        add_diagnosis(session, prints_summary=is_diagnosed_run)
    set_skip_limit(session, *request.skip_limit)
    _enter(session)
    return request.return_value


def _enter(session):
    """Make ``session`` the current one; close a disabled one before it."""
    current = state.current()
    if current is not session:
        if current is not None:
            current.close()
        state.sessions.append(session)


def _disable(verbosity):
    session = state.current()
    if session is None:
        state.sessions.append(DisabledSession(verbosity))
    elif session.enabled:
        session.notices.say(
            "ampcompat: initialize(enabled=False) leaves its models alone; what was initialized before stays enabled."
        )


def _session(caller):
    session = state.current()
    if session is None or (session.enabled and session.policy is None):
        raise AmpError(
            "{} was called before amp.initialize. Call model, optimizer = amp.initialize(model, optimizer, "
            "opt_level=...) first.".format(caller)
        )
    return session


@hide_internal_frames
def scale_loss(loss, optimizers, loss_id=0, model=None, delay_unscale=False, delay_overflow_check=False):
    """Return a context manager that yields ``loss.float() * scale`` and unscales the gradients on exit.

    On exit the gradients of the optimizers' params are divided by the scale (into float32 masters where there are any)
    and added to those of earlier passes; the scale of ``loss_id`` is updated; after an overflow the next ``step()`` of
    each optimizer is skipped.

    Args:
        loss: a floating tensor.
        optimizers: the optimizer, or the list of optimizers, whose params the backward pass reaches.
        loss_id: which of the ``num_losses`` scalers.
        model: not used, as in Apex.
        delay_unscale: leave the gradients scaled; a later ``scale_loss`` without this option unscales the sum.
        delay_overflow_check: unscale, but leave the scale unchanged and do not skip the next step.

    Raises:
        RuntimeError: before ``initialize``, or for a ``loss_id`` that has no scaler.
        TypeError: ``loss`` is not a tensor, or ``optimizers`` are not optimizers.
    """
    return _session("amp.scale_loss").scale_loss(loss, optimizers, loss_id, delay_unscale, delay_overflow_check)


@hide_internal_frames
def accumulate(optimizers, steps, total=None, start=0):
    """Return an object for gradient accumulation: several iterations share one optimizer step, as one large batch.

        accumulation = amp.accumulate(optimizer, steps=4, total=len(loader))
        for input, target in loader:
            with accumulation.no_sync(model):  # under DistributedDataParallel only; does nothing for other models
                loss = criterion(model(input), target)
                with accumulation.scale_loss(loss) as scaled_loss:
                    scaled_loss.backward()
            if accumulation.is_due():
                clip_grad_norm_(amp.master_params(optimizer), 1.0)
            if accumulation.step():  # steps and clears the gradients when it is due
                scheduler.step()

    Each loss is divided by the number of iterations that really share its step. With 102 iterations and 4 steps the
    last two losses are divided by 2. Counting goes from 0 to ``total`` and restarts there, so ``total`` is the length
    of an epoch, or of the whole training.

    Args:
        optimizers: an optimizer or a list of them.
        steps: iterations per optimizer step.
        total: the number of iterations; None if unknown; then ``accumulation.finish()`` ends the last group.
        start: where to resume: ``accumulation.iteration`` of the run that was interrupted. Gradients of an incomplete
            group are lost, and the losses of the rest of that group are divided by the number of iterations left in it.

    Raises:
        TypeError, RuntimeError: an invalid argument; the message names what was expected.
    """
    return Accumulation(lambda: _session("amp.accumulate"), optimizers, steps, total, start)


def master_params(optimizer):
    """Iterate over the params in ``optimizer.param_groups``: the float32 masters. Clip their gradients."""
    return plain_backward.master_params(optimizer)


def step_was_skipped(optimizer):
    """Return whether the optimizer's last ``step()`` was skipped because of an overflow."""
    adapter = getattr(optimizer, "_amp_stash", None)
    return adapter is not None and adapter.skips.was_last_skipped()


def state_dict(destination=None):
    """Return ``{"loss_scaler0": {"loss_scale": float, "unskipped": int}, …}``; empty where amp is disabled.

    Args:
        destination: a dict to fill, or None for a new one.
    """
    destination = OrderedDict() if destination is None else destination
    session = state.current()
    if session is not None:
        destination.update(session.state_dict())
    return destination


@hide_internal_frames
def load_state_dict(state_dict):
    """Restore the loss scalers from what ``state_dict`` returned, here or in Apex.

    Fewer or more scalers than are in use are tolerated with a warning.

    Raises:
        RuntimeError: before ``initialize``, or for keys that no loss scaler has; the message names them.
    """
    _session("amp.load_state_dict").load_state_dict(state_dict)


def disable_casts():
    """Return a context manager in which functions do not cast their inputs, in this thread; it can be nested."""
    session = state.current()
    return DisabledSession().casts.paused() if session is None else session.casts.paused()


# -- the user's own functions ------------------------------------------------------------------------------------------


def half_function(fn):
    """Decorate ``fn``: while casts are active, its floating tensor arguments are cast to half."""
    return registrations.cast_when_active(fn, rules.HALF)


def float_function(fn):
    """Decorate ``fn``: while casts are active, its half tensor arguments are cast to float32."""
    return registrations.cast_when_active(fn, rules.FLOAT)


def promote_function(fn):
    """Decorate ``fn``: while casts are active, its floating tensor arguments are cast to the widest among them."""
    return registrations.cast_when_active(fn, rules.PROMOTE)


#: The name in AMD's fork. Here it casts to the session's low-precision dtype, as ``half_function`` does.
bfloat16_function = half_function


@hide_internal_frames
def register_half_function(module, name):
    """Let ``module.name`` cast its floating tensor arguments to half while casts are active.

    Args:
        module: a module or a class.
        name: the name of a function, a method, a static method.

    Raises:
        ValueError: ``module`` has no such name.
    """
    registrations.register(module, name, rules.HALF)


@hide_internal_frames
def register_float_function(module, name):
    """Let ``module.name`` cast its half tensor arguments to float32; otherwise as ``register_half_function``."""
    registrations.register(module, name, rules.FLOAT)


@hide_internal_frames
def register_promote_function(module, name):
    """Let ``module.name`` cast its arguments to the widest among them; otherwise as ``register_half_function``."""
    registrations.register(module, name, rules.PROMOTE)


register_bfloat16_function = register_half_function


# -- the API of before 2019 --------------------------------------------------------------------------------------------


def init(
    enabled=True,
    loss_scale="dynamic",
    enable_caching=True,
    verbose=False,
    allow_banned=False,
    patch_type=torch.float16,
):
    """Cast functions as O1 does, without models or optimizers, and return a handle; its ``_deactivate()`` undoes that.

    Args:
        enabled: False returns a handle that does nothing.
        loss_scale, enable_caching, verbose: accepted; the loss is scaled by ``amp.scale_loss`` after ``initialize``.
        allow_banned: functions that are unsafe in half run in float32 instead of raising.
        patch_type: what functions cast to, as in AMD's fork: ``torch.float16``, or ``torch.bfloat16`` as O4 does.
    """
    if not enabled:
        _disable(0)
        return state.current().handle
    session = state.current()
    if session is None or not session.enabled:
        session = new_session()
    session.process_casts.allow_banned = session.process_casts.allow_banned or allow_banned
    level = "O4" if patch_type is torch.bfloat16 else "O1"
    session.process_casts.open(level_named(level, session.dtypes).dtypes)
    _enter(session)
    return session.handle
