"""Methods that an optimizer has beside those of ``torch.optim.Optimizer``, and steps of optimizers around it.

Some write to the optimizer's params: ``eval`` and ``train`` of schedule-free optimizers, ``first_step`` and
``second_step`` of SAM. At O2 and O5 these are the masters, so ``initialize`` replaces every such method: before it the
masters have what the script wrote to the half params, after it the half params are the masters, rounded. One with
"step" in its name steps on gradients as ``step`` does, at every level: it gets true ones, and is skipped if they
overflowed. An optimizer that is made around this one (Lookahead) writes to the masters after the inner step; hooks that
torch calls after every step round them.
"""

import functools
import sys
from types import FunctionType, MethodType

import torch

from ...errors import GradientOverflowError
from ...support.torch_compat import step_hooks
from ..casting import torch_compile
from . import step_or_skip
from .optimizer_record import record_of


def names_of(optimizer):
    """Return the names of the public methods of an optimizer's class that no optimizer of torch has."""
    found = {}
    for kind in type(optimizer).__mro__:
        if kind not in (torch.optim.Optimizer, object):
            found.update({name: value for name, value in vars(kind).items() if name not in found})
    return [
        name
        for name, value in found.items()
        if isinstance(value, FunctionType) and not name.startswith("_") and not hasattr(torch.optim.Optimizer, name)
    ]


def replacement(record, name, original):
    """Return the bound method that replaces an optimizer's own method ``name``; None to leave it.

    Args:
        record: the ``OptimizerRecord``.
        original: the bound method.
    """
    if not ("step" in name or record.masters):
        return None

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        own = record_of(self)
        called = functools.partial(own.methods[name], *args, **kwargs)
        return called() if own.is_running else run_method(own, name, called)

    return MethodType(method, record.optimizer)


def run_method(record, name, called):
    """Call one of these methods; ``torch.compile`` leaves this function and what it calls alone."""
    if "step" in name:
        return _run_step(record, name, called)
    record.masters.refresh()
    with record.running():
        result = record.session.process_casts.run_step(called)
    record.masters.show_all()
    return result


def _run_step(record, name, called):
    """Call a method that steps, unless the gradients overflowed.

    Of two such methods that are called in turn the second finishes what the first began.
    """
    record.gradients.prepare_step()
    record.gradients.check_unscaled()
    begun, was_skipped = record.begun_step or (name, False)
    is_skipped = record.skips.take()
    if begun == name:
        record.begun_step = name, is_skipped
    else:
        record.begun_step = None
        if is_skipped and not was_skipped:
            raise GradientOverflowError(
                f"the gradients overflowed between {begun} and {name} of {type(record.optimizer).__name__}, after the "
                "first had moved the weights: this step can neither be finished nor skipped. Optimizers of this kind "
                "need a loss scale that does not overflow: initialize with a static loss_scale, or use O0, O4 or O5."
            )
        is_skipped = is_skipped or was_skipped
    result = None
    if not is_skipped:
        with record.running():
            result = record.session.process_casts.run_step(called)
    record.finish_step(stepped=not is_skipped)
    return result


def keep_from_compiler(patches):
    """Make ``torch.compile`` leave steps alone, ``step`` itself too; undone by ``patches``."""
    functions = [(sys.modules[__name__], run_method.__name__), (step_or_skip, step_or_skip.run_step.__name__)]
    torch_compile.patch_compile(patches, uncompiled=functions)


def round_after_steps(session_masters, patches):
    """Round the masters that the step of any other optimizer has written; undone by ``patches``. Needs torch 2.0."""

    def after_step(optimizer, args, kwargs):
        if record_of(optimizer) is None:
            session_masters.show_written()

    if step_hooks.exist():
        step_hooks.register(patches, after=after_step)
