"""Training without amp: optimizers when they are made, backward passes and optimizer steps.

Functions and methods here take a ``PatchStack``, whose ``undo`` ends what they do.
"""

import inspect
import weakref
from collections import deque
from typing import Any, NamedTuple

import torch

from ..engine.session import process_state
from ..support.torch_compat import step_hooks


def watch_optimizers(patches, made):
    """Call ``made(optimizer)`` after each optimizer of torch.optim, or of a subclass, is made."""

    def watched(make, optimizer, *args, **kwargs):
        make(optimizer, *args, **kwargs)
        made(optimizer)

    # Not ``wrap``: sessions that outlive the run replace the attribute meanwhile.
    patches.redirect(inspect.unwrap(torch.optim.Optimizer.__init__), watched)


def grad_scaler_class():
    """Return torch's ``GradScaler``, of all devices or, in old torch, of CUDA."""
    return getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler


def watch_scripting(patches, before, after=None):
    """Call ``before()``, and ``after()``, around ``torch.jit.script``, whose compiler reads hooks and ``forward``."""

    def watched(script, obj, optimize=None, _frames_up=0, *args, **kwargs):
        before()
        try:
            return script(obj, optimize, _frames_up + 2, *args, **kwargs)
        finally:
            if after is not None:
                after()

    patches.wrap(torch.jit, "script", watched)


def is_amp_in_use():
    """Return whether a session is open and enabled."""
    session = process_state.current()
    return session is not None and session.enabled


class Pass(NamedTuple):
    """A backward pass, as passed to ``Observer.before_backward``."""

    loss: Any
    loss_id: int
    scale: Any
    records: list


class PlainOptimizer:
    """Represents an optimizer without amp for observers, like an ``OptimizerRecord``.

    Attributes:
        steps: how many steps it has made.
    """

    def __init__(self):
        self.skips = self
        self.steps = 0
        self.found_inf = False

    def was_last_skipped(self):
        """Return whether the last step was skipped because of an overflow; waits for the device."""
        return bool(self.found_inf)


class PlainSteps:
    """Reports training without amp; while a session is open, only that optimizers are made.

    Optimizers are known from their creation on. Steps that a ``GradScaler`` skips are reported, too.

    Args:
        listener: an object with the methods ``optimizer_made(optimizer)``; ``region_entered(region)``, for a
            ``torch.autocast`` region; ``backward_begins(loss, scale)``, with the loss before its ``GradScaler``
            multiplied it by ``scale``; ``step_begins(plain)`` and ``step_ended(plain)``, with a ``PlainOptimizer``.

    Attributes:
        optimizers: ``{optimizer: PlainOptimizer}``, weakly.
    """

    def __init__(self, listener):
        self.optimizers = weakref.WeakKeyDictionary()
        self._listener = listener
        self._scaled = deque(maxlen=16)  # (weak reference to the scaled loss, the loss, its GradScaler)
        self._is_in_backward = False

    def watch(self, patches):
        """Begin; does nothing before torch 2.0, which has no hooks on the steps of all optimizers."""
        if not step_hooks.exist():
            return
        scaler = grad_scaler_class()
        patches.redirect(torch.autograd.backward, self._backward)
        patches.redirect(inspect.unwrap(torch.autocast.__enter__), self._entered)
        watch_optimizers(patches, self._made)
        patches.wrap(scaler, "scale", self._scale)
        patches.wrap(scaler, "step", self._scaler_step)
        step_hooks.register(patches, self._before_step, self._after_step)

    def _made(self, optimizer):
        self._of(optimizer)
        self._listener.optimizer_made(optimizer)

    def _of(self, optimizer):
        return self.optimizers.setdefault(optimizer, PlainOptimizer())

    def _backward(self, backward, tensors, *args, **kwargs):
        if self._is_in_backward or is_amp_in_use():  # a checkpoint's backward runs within the other
            return backward(tensors, *args, **kwargs)
        self._listener.backward_begins(*self._unscaled(tensors if isinstance(tensors, torch.Tensor) else tensors[0]))
        self._is_in_backward = True
        try:
            return backward(tensors, *args, **kwargs)
        finally:
            self._is_in_backward = False

    def _unscaled(self, loss):
        for scaled, unscaled, scaler in self._scaled:
            if scaled() is loss:
                return unscaled, scaler.get_scale()
        return loss, 1.0

    def _entered(self, enter, region):
        result = enter(region)
        if not is_amp_in_use():
            self._listener.region_entered(region)
        return result

    def _scale(self, scale, scaler, outputs):
        scaled = scale(scaler, outputs)
        if isinstance(outputs, torch.Tensor):
            self._scaled.append((weakref.ref(scaled), outputs.detach(), scaler))
        return scaled

    def _scaler_step(self, step, scaler, optimizer, *args, **kwargs):
        plain = self._of(optimizer)
        before = plain.steps
        result = step(scaler, optimizer, *args, **kwargs)
        if plain.steps == before and not is_amp_in_use():
            self._listener.step_begins(plain)
            self._ended(plain, found_inf=True)
        return result

    def _before_step(self, optimizer, args, kwargs):
        if not is_amp_in_use():
            self._listener.step_begins(self._of(optimizer))

    def _after_step(self, optimizer, args, kwargs):
        if not is_amp_in_use():
            plain = self._of(optimizer)
            plain.steps += 1
            self._ended(plain, getattr(optimizer, "found_inf", False))  # set by GradScaler for fused optimizers

    def _ended(self, plain, found_inf):
        plain.found_inf = found_inf
        self._listener.step_ended(plain)
