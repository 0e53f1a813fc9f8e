"""Hooks on the calls of modules. Copies and pickles of a hooked module do not run them."""

import functools
import weakref
from contextlib import nullcontext

import torch

from ..support.patching import PatchStack
from ..support.torch_compat import features


class ModuleHook:
    """A forward hook or pre-hook. Copies and pickles of its module have one that does nothing.

    That of a pickle is from the standard library, so that the file can be loaded where ampcompat is not installed.

    Args:
        call: called with ``arguments`` followed by what torch passes to the hook; its return value is ignored.
    """

    def __init__(self, call, *arguments):
        self._call = call
        self._arguments = arguments

    def __call__(self, module, *values):
        self._call(*self._arguments, module, *values)

    def __deepcopy__(self, memo):
        return ModuleHook(_do_nothing)

    def __reduce__(self):
        return getattr, (nullcontext(), "__exit__")


def _do_nothing(*values):
    """Do nothing. Unlike functions of the standard library, every torch compiles it into a graph."""


def before_call(patches, module, call, *arguments):
    """Call ``call(*arguments, module, args, kwargs)`` before each call of a module until ``patches`` is undone.

    Torch before 2.0 does not pass ``kwargs`` to hooks: there it is empty.
    """
    if features.has_hooks_with_kwargs():
        register = functools.partial(module.register_forward_pre_hook, with_kwargs=True)
        patches.register(register, ModuleHook(call, *arguments), owner=module)
    else:
        patches.register(module.register_forward_pre_hook, ModuleHook(_without_kwargs, call, *arguments), owner=module)


def _without_kwargs(call, *values):
    call(*values, {})


def after_call(patches, module, call, *arguments):
    """Call ``call(*arguments, module, args, output)`` after each call of a module until ``patches`` is undone."""
    patches.register(module.register_forward_hook, ModuleHook(call, *arguments), owner=module)


class TrainingCalls:
    """Calls a function before each call of a model that is in training mode while autograd records.

    Args:
        on_call: called with (model, args, kwargs).
    """

    def __init__(self, on_call):
        self._on_call = on_call
        self._patches = PatchStack()
        self._watched = weakref.WeakSet()

    def watch(self, models):
        """Watch these models, unless they are watched already."""
        for model in models:
            if model not in self._watched:
                before_call(self._patches, model, self._called)
                self._watched.add(model)

    def _called(self, model, args, kwargs):
        if model.training and torch.is_grad_enabled():
            self._on_call(model, args, kwargs)

    def forget(self):
        """Remove the hooks from all models."""
        self._patches.undo()
        self._watched.clear()
