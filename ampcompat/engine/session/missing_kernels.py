"""Errors that say what to do where torch cannot compute in a half dtype on a CPU, as old torch cannot."""

import functools
import re
from contextlib import contextmanager, nullcontext

import torch

from ...errors import AmpError
from ...support import terminal
from ...support.torch_compat import cpu, features
from ...support.torch_compat.torch_names import dtype_name

IS_BOOKKEEPING = False  # modules are called from here

_MISSING_KERNEL = re.compile("not (implemented|supported) .*(Half|BFloat16)")


def explained(context, low):
    """Return the context of ``forward`` (see ``ForwardConversion``), made to explain what torch lacks for a dtype.

    Args:
        context: a function that returns a context manager or None.
        low: the dtype that the model computes in. If torch has kernels for it, ``context`` itself is returned.
    """
    return context if cpu.trains_in(low) else functools.partial(_explaining_context, context, low, _others(low))


def explain_calls(low, patches):
    """Explain what torch lacks for a dtype in the call of any module, as functions are cast in all of them."""
    if not cpu.trains_in(low):
        original, others = torch.nn.Module.__call__, _others(low)

        @functools.wraps(original)
        def call(self, *args, **kwargs):
            with _explaining(low, others):
                return original(self, *args, **kwargs)

        patches.set(torch.nn.Module, "__call__", call)


def _others(low):
    """Return which levels work instead. Kernels are tried out now and not in ``forward``, where they may be cast."""
    return "O4 or O5, " if low is not torch.bfloat16 and cpu.trains_in(torch.bfloat16) else ""


@contextmanager
def _explaining_context(context, low, others):
    if torch.is_grad_enabled() and not cpu.differentiates(low):
        raise AmpError(_advice("computes no gradients of", low, ".", others + "a newer torch"))
    with _explaining(low, others), context() or nullcontext():
        yield


@contextmanager
def _explaining(low, others):
    try:
        yield
    except AmpError:
        raise
    except RuntimeError as error:
        if not _MISSING_KERNEL.search(str(error)):
            raise
        raise AmpError(
            _advice("cannot compute this in", low, f": {error}.", others + "a newer torch, a GPU")
        ) from error


def _advice(problem, low, reason, alternatives):
    script = terminal.script_command()
    command = "" if script is None else f"by ampcompat run --dtypes float32,float64 {script}, or "
    return (
        f"torch {features.version()} {problem} {dtype_name(low)}{reason} What works: opt_level O0, {alternatives}; or "
        f"float32 instead of half, and float64 of float32, {command}in the block of "
        "ampcompat.session(dtypes=ampcompat.opt_levels.STAND_IN)."
    )
