"""Keeps the calls of models, to repeat a forward pass whose step was skipped: the weights have not changed."""

import contextlib
import copy
import weakref

import torch

from ...support import random_state
from ...support.torch_compat.thread_context import world_size
from ...trace.hooks import TrainingCalls

#: The number of calls of one pass that are kept: bounds the memory if no backward pass follows the forward passes.
MAX_CALLS = 16


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
            with contextlib.suppress(Exception), _restored(model, state), torch.enable_grad():
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
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
