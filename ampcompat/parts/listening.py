"""Hear how large the outputs of modules are, and the gradients that come back to them.

Owns: ``Listener``: its hooks on modules and on their outputs, and what they heard since the last ``begin_anew``.
Must not touch: outputs, gradients and the graph: a hook on a tensor looks at a gradient and returns nothing.
The surprise: hooks travel with a model that is copied or pickled, and there they are deaf: a copy is not the model that
is listened to. What a checkpoint computes again in the backward pass is no second forward pass; only its gradients are
heard.
"""

import weakref
from collections import deque
from typing import NamedTuple

import torch

from .magnitudes import largest
from .patching import PatchStack

#: Calls that are remembered: bounds the memory where forward passes are never followed by a backward pass.
CALLS = 20000

#: How what goes into a model is called, among the outputs.
INPUT = "the input of "

_functorch_level = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)
_tracing_state = getattr(torch._C, "_get_tracing_state", lambda: None)


class Heard(NamedTuple):
    """One module's output, or the gradient at it."""

    name: str
    value: torch.Tensor  # of shape (): the largest magnitude
    dtype: torch.dtype


class Listener:
    """Listens to models, module by module.

    Args:
        is_compiling: whether a compiler is tracing; it must not meet us.
        gradients: whether to hear gradients too.
    """

    def __init__(self, is_compiling=bool, gradients=True):
        self.outputs = deque(maxlen=CALLS)
        self.gradients = deque(maxlen=CALLS)
        self.is_in_backward = bool  # False until somebody knows better
        self._is_compiling = is_compiling
        self._hears_gradients = gradients
        self._is_stale = False
        self._is_inside = False  # of a forward pass that is for training
        self._last = (bool, None)  # the tensor that was heard last, weakly, and its version
        self._hooked = weakref.WeakSet()
        self._patches = PatchStack()

    def attend(self, model, name_of):
        """Listen to every module of ``model`` from now on.

        Args:
            name_of: a module's name in the model, "" for the model itself -> what it is called.
        """
        for name, module in model.named_modules():
            if module not in self._hooked and not isinstance(module, torch.jit.ScriptModule):
                self._hooked.add(module)
                heard_input = self._heard_first_input if module is model else self._heard_input
                before, after = _Ear(heard_input, INPUT + name_of(name)), _Ear(self._heard_output, name_of(name))
                self._patches.defer(module.register_forward_pre_hook(before).remove)
                self._patches.defer(module.register_forward_hook(after).remove)

    def stop(self):
        """Take every hook away."""
        self._patches.undo()
        self._hears_gradients = False

    def expect_anew(self):
        """Forget what was heard as soon as the next forward pass begins."""
        self._is_stale = True

    # -- what the hooks call -------------------------------------------------------------------------------------------

    def _is_deaf(self):
        return self._is_compiling() or _functorch_level() is not None or _tracing_state() is not None

    def _heard_first_input(self, name, module, args):
        if not self._is_deaf() and not self.is_in_backward():
            self._is_inside = torch.is_grad_enabled()
        self._heard_input(name, module, args)

    def _heard_input(self, name, module, args):
        if self._is_deaf() or self.is_in_backward() or not self._is_in_training():
            return
        self._begin()
        for tensor in floating_tensors(args):
            if not self._is_known(tensor):  # what the last module returned has been heard; functions' results have not
                _note(self.outputs, name, tensor)
                self._last = weakref.ref(tensor), _version(tensor)

    def _is_in_training(self):
        return self._is_inside or torch.is_grad_enabled()

    def _heard_output(self, name, module, args, output):
        if self._is_deaf():
            return
        if self.is_in_backward():
            self._await_gradients(name, output)
        elif self._is_in_training():
            self._begin()
            for tensor in floating_tensors(output):
                if not self._is_known(tensor):  # what a container returns is what its last child returned
                    _note(self.outputs, name, tensor)
            self._await_gradients(name, output)

    def _begin(self):
        if self._is_stale:
            self._is_stale = False
            self.outputs.clear()
            self.gradients.clear()

    def _await_gradients(self, name, output):
        for tensor in floating_tensors(output):
            if self._hears_gradients and tensor.grad_fn is not None and not self._is_known(tensor):
                tensor.register_hook(lambda gradient: self._heard_gradient(name, gradient))
            self._last = weakref.ref(tensor), _version(tensor)

    def _is_known(self, tensor):
        reference, version = self._last
        return reference() is tensor and _version(tensor) == version

    def _heard_gradient(self, name, gradient):
        if self._hears_gradients and self.is_in_backward() and isinstance(gradient, torch.Tensor):
            _note(self.gradients, name, gradient)


def _version(tensor):
    """Return what counts the changes in place to a tensor; one of inference mode has no such count."""
    return None if getattr(tensor, "is_inference", bool)() else tensor._version


def _note(heard, name, tensor):
    value = largest(tensor)
    if value is not None:
        heard.append(Heard(name, value, tensor.dtype))


def floating_tensors(value):
    """Yield the floating tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from floating_tensors(item)
    elif isinstance(value, dict):
        yield from floating_tensors(list(value.values()))


class _Ear:
    """A hook of a module. Copied or pickled along with it, it hears nothing."""

    def __init__(self, heard=None, name=""):
        self._heard = heard
        self._name = name

    def __call__(self, module, *values):
        if self._heard is not None:
            self._heard(self._name, module, *values)

    def __deepcopy__(self, memo):
        return _Ear()

    def __reduce__(self):
        return _Ear, ()
