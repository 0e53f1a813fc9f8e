"""Runs backward passes without casts, and Python code within them under the casts of its forward pass.

Such code is a recomputed checkpoint or the Python ``backward`` of a custom ``autograd.Function``. What the autograd
engine runs in C++ must not be cast: the gradients of a float32-only region are wrong by 4e-4 when its matrix products
are.
"""

import functools

import torch
from torch.autograd import function as autograd_function
from torch.utils import checkpoint

from . import torch_compile

#: Packages whose own functions were written for a backward pass without casts.
_INTERNAL = ("torch", "ampcompat")
#: Where torch.func and torch.compile make a function of their own around each custom one of a user.
_FUNCTION_TRANSFORMS = "torch._functorch.autograd_function"


def pause_backward(backend, patches):
    """Run every backward pass with the backend's casts off, on any thread, except for custom functions."""
    patches.set(
        torch.autograd.Variable, "_execution_engine", _Engine(torch.autograd.Variable._execution_engine, backend)
    )
    node = autograd_function.BackwardCFunction
    # torch makes the ``ctx`` of a call before it calls ``forward``, in the same thread.
    patches.set(node, "__init__", _recording_casts(node.__init__, backend))
    for name in ("apply", "apply_boxed"):  # called on the engine's thread of the device, where casts are not paused
        if hasattr(node, name):
            patches.set(node, name, _under_recorded_casts(getattr(node, name), backend))


class _Engine:
    """torch's autograd engine, with casts off while it runs. Every way to call it reads it from ``Variable``."""

    def __init__(self, engine, backend):
        self._engine = engine
        self.run_backward = _backward(engine.run_backward, backend)

    def __getattr__(self, name):
        return getattr(self._engine, name)


def _backward(original, backend):
    @functools.wraps(original)
    def run_backward(*args, **kwargs):
        try:
            with backend.paused():
                return original(*args, **kwargs)
        finally:  # within a ``forward``, a step may follow, and some kernels do not change version counters
            backend.clear_cache()

    return run_backward


def _recording_casts(original, backend):
    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if _is_custom(type(self)._forward_cls):
            self._ampcompat_casts = (backend, backend.bind_casts(_call))

    return __init__


def _is_custom(function_class):
    """Return whether an ``autograd.Function`` is a user's own, neither torch's nor ours."""
    module = function_class.__module__
    return module.partition(".")[0] not in _INTERNAL or module == _FUNCTION_TRANSFORMS


def _call(function, *args):
    return function(*args)


def _under_recorded_casts(original, backend):
    @functools.wraps(original)
    def apply(self, *args):
        recorded_by, as_in_forward = getattr(self, "_ampcompat_casts", (None, None))
        if recorded_by is backend:
            return as_in_forward(original, self, *args)
        with backend.paused():  # an internal function, or one called before this backend was opened
            return original(self, *args)

    return apply


def checkpoint_under_same_casts(backend, patches):
    """Make both forms of checkpointing recompute under the casts that were on or off at the call.

    What they call again in backward is wrapped where they keep it: no frame of ours stands between a script and
    ``checkpoint``, whose warnings name the line that called it. A ``context_fn`` would not do: torch refuses it with
    ``debug=True`` and in the reentrant form, it would replace the caller's own, and under torch.compile it must be a
    dispatch mode.
    """
    reentrant = checkpoint.CheckpointFunction
    patches.set(reentrant, "forward", staticmethod(_bound(reentrant.forward, backend, 1)))
    frame = getattr(checkpoint, "_CheckpointFrame", None)
    if frame is not None:
        patches.set(frame, "__init__", _bound(frame.__init__, backend, 1))
    elif hasattr(checkpoint, "_checkpoint_without_reentrant"):  # torch before 2.1
        name = "_checkpoint_without_reentrant"
        patches.set(checkpoint, name, _bound(getattr(checkpoint, name), backend, 0))


def _bound(original, backend, position):
    """Wrap the function that is the argument in this position."""

    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        if not torch_compile.is_compiling():
            args = args[:position] + (backend.bind_casts(args[position]),) + args[position + 1 :]
        return original(*args, **kwargs)

    return wrapper
