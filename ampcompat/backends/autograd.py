"""Backward passes run without casts; recomputed forward passes run with the casts of their first time.

Owns: the patches of ``torch.autograd`` and ``torch.utils.checkpoint``.
Must not touch: the engine itself.
The surprise: gradients of a float32-only region are wrong by 4e-4 when its backward runs under process-wide casts, as
the matrix products of backward are cast too. But checkpointing calls the model from inside backward, and there the
casts must be what they were in forward.
"""

import functools

import torch
from torch.autograd import function as autograd_function
from torch.utils import checkpoint


def pause_backward(backend, patches):
    """Run every backward pass with the backend's casts off, on whatever thread it runs.

    Args:
        backend: a ``CastBackend`` with ``paused()`` and ``as_now()``.
        patches: the ``PatchStack`` that undoes it.
    """
    for name in ("backward", "grad"):
        patches.set(torch.autograd, name, _without_casts(getattr(torch.autograd, name), backend))
    # Custom functions in Python: the engine calls them on a thread of the device, which pauses nothing by itself.
    node = autograd_function.BackwardCFunction
    patches.set(node, "apply", _without_casts(node.apply, backend))


def recompute_alike(backend, patches):
    """Let both forms of checkpointing recompute under the casts that were in force at the call."""
    _patch_reentrant(backend, patches)
    for name in ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant"):
        if hasattr(checkpoint, name):
            patches.set(checkpoint, name, _first_argument_as_now(getattr(checkpoint, name), backend))


def _patch_reentrant(backend, patches):
    original = checkpoint.CheckpointFunction.forward

    @functools.wraps(original)
    def forward(ctx, run_function, *args):
        return original(ctx, backend.as_now(run_function), *args)

    patches.set(checkpoint.CheckpointFunction, "forward", staticmethod(forward))


def _first_argument_as_now(original, backend):
    @functools.wraps(original)
    def recomputed(function, *args, **kwargs):
        return original(backend.as_now(function), *args, **kwargs)

    return recomputed


def _without_casts(original, backend):
    @functools.wraps(original)
    def without_casts(*args, **kwargs):
        with backend.paused():
            return original(*args, **kwargs)

    return without_casts
