"""Hooks that measure module outputs and the gradients of those outputs, by default the largest absolute value.

Instead, they can keep the calls of the models, to repeat a forward pass whose step was skipped: the weights have not
changed.
"""

import contextlib
import copy
import functools
import weakref
from collections import deque
from typing import Any, NamedTuple

import torch

from ..engine.casting import torch_compile
from ..support import random_state
from ..support.containers import floating_tensors
from ..support.patching import PatchStack, run_after
from ..support.torch_compat.features import version_of
from ..support.torch_compat.thread_blocks import grad_enabled
from ..support.torch_compat.thread_context import functorch_level, jit_tracing_state, world_size
from .hooks import TrainingCalls, after_call, before_call
from .values import max_abs

IS_BOOKKEEPING = True  # see support/script_frames.py

#: The number of entries that are kept: bounds the memory if no backward pass follows the forward passes.
MAX_ENTRIES = 20000

#: The number of calls of one pass that are kept: bounds the memory if no backward pass follows the forward passes.
MAX_CALLS = 16


class Entry(NamedTuple):
    """One module's output or input, or the gradient of an output."""

    name: Any  # what ``name_of`` returned
    measured: torch.Tensor  # of shape () for ``max_abs``
    dtype: torch.dtype
    size: int


class ActivationHooks:
    """Forward hooks on the modules of models, and tensor hooks on their outputs. Nothing is changed or read.

    Recomputation by a checkpoint in the backward pass is not a second forward pass: only its gradients are recorded.

    Args:
        is_in_backward: a function of no arguments: whether a backward pass is in progress.
        measure: a function: tensor -> the recorded tensor, on its device; None records nothing.
    """

    def __init__(self, is_in_backward, measure=max_abs):
        self._is_in_backward, self._measure = is_in_backward, measure
        self.outputs = deque(maxlen=MAX_ENTRIES)
        self.gradients = deque(maxlen=MAX_ENTRIES)
        self.calls = ModelCalls(self._is_traced)  # while paused
        self._models = []  # (weak reference to a model, name_of)
        self._is_paused = False
        self._is_removed = False
        self._is_stale = False
        self._is_training_forward = False  # inside the forward of a whole model with gradients enabled
        self._last = (None, None)  # a weak reference to the last recorded tensor, and its version
        self._hooked = weakref.WeakSet()
        self._patches = PatchStack()

    def register(self, model, name_of):
        """Register hooks on every module of ``model``.

        Args:
            name_of: a function: a module's name in the model ("" for the model itself) -> its name in the entries;
                with ``is_input=True``, that of its inputs, which are among the outputs.
        """
        self._models = [each for each in self._models if each[0]() is not None] + [(weakref.ref(model), name_of)]
        self._register(model, name_of)

    def pause(self, pauses):
        """Remove the hooks of modules, so that forward passes have no overhead; or register them again.

        Meanwhile ``calls`` keeps the calls of the models.

        Traced hooks do nothing: torch.compile generates the same code with hooks and without.
        """
        if pauses == self._is_paused:
            return
        self._is_paused = pauses
        self._register_again()

    def forget(self, model):
        """Remove the hooks of one model."""
        self._models = [each for each in self._models if each[0]() is not model]
        self._register_again()

    def _register_again(self):
        self._undo()
        for model, name_of in self._models:
            if model() is not None:
                self._register(model(), name_of)

    def replayed(self, calls):
        """Repeat calls of models with hooks, whether paused or not; return the ``Entry`` objects of their outputs."""
        was_paused = self._is_paused
        self.pause(False)
        self.outputs.clear()
        replay(calls)
        found = list(self.outputs)
        self.clear_on_next_forward()
        self.pause(was_paused)
        return found

    def _register(self, model, name_of):
        if self._is_paused:
            self.calls.models.watch([model])
            return
        mark = self._patches.mark()
        try:
            for name, module in model.named_modules():
                if module not in self._hooked and not isinstance(module, torch.jit.ScriptModule):
                    self._hooked.add(module)
                    record_input = self._model_input if module is model else self._input
                    before_call(self._patches, module, record_input, name_of(name, is_input=True))
                    after_call(self._patches, module, self._output, name_of(name))
        except BaseException as error:
            run_after(error, functools.partial(self._patches.undo, mark))
            raise

    def remove(self):
        """Remove all hooks."""
        self._undo()
        self._is_removed = True  # for the hooks on tensors

    def _undo(self):
        self.calls.models.forget()
        self._patches.undo()
        self._hooked.clear()

    def clear_on_next_forward(self):
        """Drop all entries when the next forward pass begins."""
        self._is_stale = True

    # -- what the hooks call -------------------------------------------------------------------------------------------

    def _is_traced(self):
        return torch_compile.is_compiling() or functorch_level() is not None or jit_tracing_state() is not None

    def _model_input(self, name, module, args, kwargs):
        if not self._is_traced() and not self._is_in_backward():
            self._is_training_forward = torch.is_grad_enabled()
        self._input(name, module, args, kwargs)

    def _input(self, name, module, args, kwargs):
        if self._is_traced() or self._is_in_backward() or not self._is_training():
            return
        self._clear_if_stale()
        for tensor in floating_tensors(args, []):
            if not self._is_last(tensor):  # the last module's output has been recorded, results of functions have not
                self._append(self.outputs, name, tensor)
                self._last = weakref.ref(tensor), version_of(tensor)

    def _is_training(self):
        return self._is_training_forward or torch.is_grad_enabled()  # reentrant checkpoints disable gradients

    def _output(self, name, module, args, output):
        if self._is_traced():
            return
        if self._is_in_backward():
            self._hook_gradients(name, output)
        elif self._is_training():
            self._clear_if_stale()
            for tensor in floating_tensors(output, []):
                if not self._is_last(tensor):  # a container returns what its last child returned
                    self._append(self.outputs, name, tensor)
            self._hook_gradients(name, output)

    def _clear_if_stale(self):
        if self._is_stale:
            self._is_stale = False
            self.outputs.clear()
            self.gradients.clear()

    def _hook_gradients(self, name, output):
        for tensor in floating_tensors(output, []):
            if tensor.grad_fn is not None and not self._is_last(tensor):
                tensor.register_hook(lambda gradient: self._gradient(name, gradient))
            self._last = weakref.ref(tensor), version_of(tensor)

    def _is_last(self, tensor):
        reference, version = self._last
        return reference is not None and reference() is tensor and version_of(tensor) == version

    def _gradient(self, name, gradient):
        if not self._is_removed and self._is_in_backward() and isinstance(gradient, torch.Tensor):
            self._append(self.gradients, name, gradient)

    def _append(self, entries, name, tensor):
        value = self._measure(tensor)
        if value is not None:
            entries.append(Entry(name, value, tensor.dtype, tensor.numel()))


# -- repeated forward passes -------------------------------------------------------------------------------------------


class ModelCalls:
    """The calls of models since the last backward pass: arguments (not copied) and random states.

    Args:
        is_traced: a function: whether a call is traced, for example by torch.compile; such calls are not kept.

    Attributes:
        models: the ``TrainingCalls`` with the models whose calls are kept.
    """

    def __init__(self, is_traced):
        self.models = TrainingCalls(self._called)
        self._is_traced = is_traced
        self._calls = []
        self._is_stale = False

    def take(self):
        """Return the calls of the pass whose backward pass begins; ``clear`` empties the list."""
        self._is_stale = True
        return self._calls

    def clear(self):
        """Drop the calls: the weights change."""
        self._calls.clear()

    def _called(self, model, args, kwargs):
        if self._is_traced():
            return
        if self._is_stale:
            self._calls, self._is_stale = [], False
        if len(self._calls) < MAX_CALLS:
            self._calls.append((weakref.ref(model), args, kwargs, random_state.capture()))


def replay(calls):
    """Repeat calls so that hooks record them, and restore what they change. Not done if processes would wait."""
    if world_size() > 1:
        return
    for reference, args, kwargs, state in calls:
        model = reference()
        if model is not None:
            with contextlib.suppress(Exception), _restored(model, state), grad_enabled(True):
                model(*args, **kwargs)


@contextlib.contextmanager
def _restored(model, state):
    """A context with this random state that restores buffers, module attributes and the random state at its end."""
    attributes = [(module, dict(vars(module), _buffers=copy.copy(module._buffers))) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with random_state.restored(state):
            yield
    finally:
        for module, values in attributes:
            vars(module).clear()
            vars(module).update(values)
        with grad_enabled(False):
            for buffer, value in buffers:
                buffer.copy_(value)
