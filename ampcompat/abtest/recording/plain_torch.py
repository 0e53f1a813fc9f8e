"""Records training that does not call ``amp.initialize``: backward passes, optimizer steps and ``GradScaler``.

A plain loop does not number its losses. So in a series with such a script, the losses of every run are numbered by
their line, in the order in which these lines first run.
"""

import functools
import inspect
import sys
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from ...engine.session import process_state
from ...support.observer import Observer
from ...support.script_frames import script_line
from ...support.torch_compat import step_hooks
from ...tools.forced_levels.trained_modules import outermost, params_in, trained_params
from .recorder import StepLimitReached


class Pass(NamedTuple):
    """A backward pass, as passed to ``Observer.before_backward``."""

    loss: Any
    loss_id: int
    scale: Any
    records: list


class PlainOptimizer:
    """Represents an optimizer for a ``Recorder``, like an ``OptimizerRecord``."""

    def __init__(self):
        self.skips = self
        self.steps = 0
        self.found_inf = False

    def was_last_skipped(self):
        """Return whether the last step was skipped because of an overflow; waits for the device."""
        return bool(self.found_inf)


class NumberedLosses(Observer):
    """Forwards everything to a ``Recorder``, with the losses numbered by ``number()``."""

    def __init__(self, recorder, number):
        self._recorder, self._number = recorder, number
        self.initialized, self.closed = recorder.initialized, recorder.closed
        self.before_step, self.after_step = recorder.before_step, recorder.after_step

    def before_backward(self, backward):
        """Forward it."""
        self._recorder.before_backward(Pass(backward.loss, self._number(), backward.scale, backward.records))


class PlainTraining:
    """Reports plain training to a ``Recorder``; while a session is open, it does nothing.

    Optimizers are known from their creation on. A step of the run ends when all of them have stepped, or when a line
    with a backward pass runs again after a step.

    Args:
        recorder: the ``Recorder``.
        observers: sources of events of the recorder that also observe the backward passes of plain training.
    """

    def __init__(self, recorder, observers=()):
        self._recorder, self._observers = recorder, list(observers)
        self._loss_ids = {}  # (file, line) -> loss_id
        self._optimizers = weakref.WeakKeyDictionary()  # optimizer -> PlainOptimizer
        self._scaled = deque(maxlen=16)  # (weak reference to the scaled loss, the loss, its GradScaler)
        self._params = set()  # ids of params in watched models
        self._is_in_backward = self._casts_itself = False
        self._step, self._passes, self._stepped = 0, {}, []  # in this step: loss_id -> optimizer steps before it

    def number(self):
        """Return the number of the loss of the running line of the script."""
        return self._loss_ids.setdefault(script_line(), len(self._loss_ids))

    def watch(self, patches):
        """Patch torch until ``patches`` is undone; does nothing before 2.0, which has no global optimizer hooks."""
        optim = sys.modules[torch.optim.Optimizer.__module__]
        if not hasattr(optim, "register_optimizer_step_post_hook"):
            return
        scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
        # Sessions that outlive the run replace these two attributes meanwhile.
        patches.redirect(torch.autograd.backward, self._backward)
        patches.redirect(inspect.unwrap(torch.autocast.__enter__), self._entered)
        patches.set(torch.optim.Optimizer, "__init__", self._made(torch.optim.Optimizer.__init__))
        patches.set(torch.jit, "script", self._scripting(torch.jit.script))
        patches.set(scaler, "scale", self._scale(scaler.scale))
        patches.set(scaler, "step", self._scaler_step(scaler.step))
        step_hooks.register(patches, self._before_step, self._after_step)

    # -- what is called instead of torch's functions -------------------------------------------------------------------

    def _backward(self, backward):
        @functools.wraps(backward)
        def watched(tensors, *args, **kwargs):
            if self._is_in_backward or _is_amp_in_use():  # a checkpoint's backward runs within the other
                return backward(tensors, *args, **kwargs)
            self._before_backward(tensors if isinstance(tensors, torch.Tensor) else tensors[0])
            self._is_in_backward = True
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self._is_in_backward = False

        return watched

    def _made(self, make):
        @functools.wraps(make)
        def watched(optimizer, *args, **kwargs):
            make(optimizer, *args, **kwargs)
            self._optimizers.setdefault(optimizer, PlainOptimizer())
            self._watch_models_of(optimizer)

        return watched

    def _watch_models_of(self, optimizer):
        """Watch the models that an optimizer trains, unless all of its params are in watched models."""
        if not self._params.issuperset(trained_params([optimizer])):
            models = outermost([optimizer])
            self._params.update(*map(params_in, models))
            self._recorder.watch_models(models)

    def _scripting(self, script):
        @functools.wraps(script)
        def watched(obj, optimize=None, _frames_up=0, *args, **kwargs):
            self._params.clear()
            self._recorder.forget_models()  # the compiler would trace the hooks
            return script(obj, optimize, _frames_up + 1, *args, **kwargs)

        return watched

    def _entered(self, enter):
        @functools.wraps(enter)
        def watched(region):
            result = enter(region)
            if not self._casts_itself and not _is_amp_in_use() and region._enabled:
                self._casts_itself = True
                told = "torch.autocast in {}:{}".format(*script_line())
                self._recorder.record({"environment": {"casts_itself": told}})
            return result

        return watched

    def _scale(self, scale):
        @functools.wraps(scale)
        def watched(scaler, outputs):
            scaled = scale(scaler, outputs)
            if isinstance(outputs, torch.Tensor):
                self._scaled.append((weakref.ref(scaled), outputs.detach(), scaler))
            return scaled

        return watched

    def _scaler_step(self, step):
        @functools.wraps(step)
        def watched(scaler, optimizer, *args, **kwargs):
            plain = self._optimizers.setdefault(optimizer, PlainOptimizer())
            before = plain.steps
            result = step(scaler, optimizer, *args, **kwargs)
            if plain.steps == before and not _is_amp_in_use():
                self._recorder.before_step(plain)
                self._end_step(plain, found_inf=True)
            return result

        return watched

    # -- reports to the recorder ---------------------------------------------------------------------------------------

    def _before_backward(self, loss):
        if not self._recorder.is_initialized:
            self._recorder.initialized(SimpleNamespace(choice=None), [], [])
            self._recorder.sources[:] = self._observers  # the others measure models known to amp
            self._record_half_weights()
        loss, scale = self._unscaled(loss)
        loss_id = self.number()
        self._begin_step_if_ended()
        records = [each for each in self._optimizers.values() if each not in self._stepped]
        if len(self._stepped) > self._passes.get(loss_id, len(self._stepped)):
            records = self._stepped[-1:]  # the recorder ends its step
        for observer in [self._recorder] + self._observers:
            observer.before_backward(Pass(loss, loss_id, scale, records))
        self._begin_step_if_ended()
        self._passes[loss_id] = len(self._stepped)

    def _record_half_weights(self):
        """Record the dtype that most trained params have, if it is half: their optimizers update half weights."""
        sizes = {}
        for optimizer in self._optimizers:
            for param in [param for group in optimizer.param_groups for param in group["params"]]:
                sizes[param.dtype] = sizes.get(param.dtype, 0) + param.numel()
        dtype = max(sizes, key=sizes.get, default=None)
        if dtype in (torch.float16, torch.bfloat16):
            self._recorder.record({"environment": {"half_weights": str(dtype).partition(".")[2]}})

    def _begin_step_if_ended(self):
        step = len(self._recorder.run.step_seconds)
        if step != self._step:
            self._step, self._passes, self._stepped = step, {}, []

    def _unscaled(self, loss):
        for scaled, unscaled, scaler in self._scaled:
            if scaled() is loss:
                return unscaled, scaler.get_scale()
        return loss, 1.0

    def _before_step(self, optimizer, args, kwargs):
        if not _is_amp_in_use():
            self._recorder.before_step(self._optimizers.setdefault(optimizer, PlainOptimizer()))

    def _after_step(self, optimizer, args, kwargs):
        if not _is_amp_in_use():
            plain = self._optimizers[optimizer]
            plain.steps += 1
            self._end_step(plain, getattr(optimizer, "found_inf", False))  # set by GradScaler for fused optimizers

    def _end_step(self, plain, found_inf):
        plain.found_inf = found_inf
        self._begin_step_if_ended()
        self._stepped.append(plain)
        self._recorder.after_step(plain)


def limit_steps(recorder, patches):
    """End training without amp after the recorder's limit of steps; from torch 2.0 on.

    Such a run has nothing to record, so it need not continue to its end.
    """
    optim = sys.modules[torch.optim.Optimizer.__module__]
    if not hasattr(optim, "register_optimizer_step_post_hook"):
        return
    counts = weakref.WeakKeyDictionary()  # optimizer -> its steps without amp

    def after_step(optimizer, args, kwargs):
        if not recorder.is_initialized and not _is_amp_in_use():
            counts[optimizer] = counts.get(optimizer, 0) + 1
            if counts[optimizer] == recorder.limit:
                raise StepLimitReached(f"{recorder.limit} steps were made without amp")

    patches.defer(optim.register_optimizer_step_post_hook(after_step).remove)


def _is_amp_in_use():
    session = process_state.current()
    return session is not None and session.enabled
