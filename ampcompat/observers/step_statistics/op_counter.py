"""Counts the calls of torch's functions by the dtype in which they run, and by the reason for it.

Functions of the op table are observed through ``engine.casting.wrappers.around``, outside their wrappers: before the
casts, where it is known whether casts are enabled. All functions are observed by a function mode, inside the wrappers,
with the inputs that they actually get.
"""

import functools
import os
import threading
from typing import Any, NamedTuple, Tuple

import torch

from ...engine.casting import emulated_half_arithmetic, torch_compile, wrappers
from ...engine.op_table.function_properties import functional, having
from ...support.containers import floating_tensors, tensors_in
from ...support.patching import PatchStack
from ...support.script_frames import is_bookkeeping
from ...support.torch_compat.thread_context import is_in_backward
from ..calls import FunctionCalls

_COMPOSED = functional("is_composed")


class CallKind(NamedTuple):
    """The key of a count: calls of a function that run in the same dtypes for the same reason.

    ``function``: one of torch's, or None if it is given by ``row``, the row of the op table. ``are_casts_on``: in the
    caller. ``dtypes``: of its floating-point inputs after the casts, without duplicates. ``low``: the dtype in which
    the call is emulated (``emulated_half_arithmetic``), or None. ``place``: see ``OpStats``.
    """

    function: Any
    row: Any
    are_casts_on: bool
    dtypes: Tuple[torch.dtype, ...]
    low: Any
    place: Any


class OpCounter(FunctionCalls):
    """Counts calls in this thread between ``start`` and ``stop``, without those of autograd's backward pass.

    Args:
        are_casts_on: a function: whether functions of the op table cast at the place of the call.
        place: a function: the hashable description of the place of a call.

    Attributes:
        counts: ``{CallKind: calls}``.
        is_paused: whether counting is paused; True initially.
    """

    ignored = having("is_view") | having("changes_dtype") | having("is_outside_forward")
    ignored |= frozenset("long int short char byte bool __get__".split())

    def __init__(self, are_casts_on, place):
        super().__init__()
        self.counts = {}
        self.is_paused = True
        self._are_casts_on, self._place = are_casts_on, place
        self._calls_of_row = None  # within a function of the op table: the ``_Call`` for the functions that it calls
        self._rows = 0  # calls of functions of the op table so far
        self._emulated_in = None
        self._patches = PatchStack()
        self._owner = None

    def start(self):
        """Count calls in this thread. Call it before the casts are opened."""
        self._owner = os.getpid(), threading.get_ident()
        wrappers.around.append(self._around)
        self._patches.defer(wrappers.around.remove, self._around)
        self._patches.wrap(emulated_half_arithmetic.EmulatedCall, "computed", self._note_emulation)
        super().start()
        self._patches.defer(super().stop)

    def stop(self):
        """Stop counting; wrappers that are still open only forward calls."""
        self._owner = None
        self._patches.undo()

    # -- functions of the op table -------------------------------------------------------------------------------------

    def _around(self, row, wrapper):
        @functools.wraps(wrapper)
        def counted(*args, **kwargs):
            if (
                torch_compile.is_tracing()
                or self._calls_of_row is not None
                or self.is_paused
                or self._owner != (os.getpid(), threading.get_ident())
                or is_in_backward()
                or is_bookkeeping()
            ):
                return wrapper(*args, **kwargs)
            self._rows += 1
            are_casts_on = self._are_casts_on()
            calls = self._calls_of_row = []
            try:
                result = wrapper(*args, **kwargs)
            finally:
                self._calls_of_row = None
            self._count_row(row, torch_compile.original(wrapper), are_casts_on, calls, result)
            return result

        return counted

    def _count_row(self, row, function, are_casts_on, calls, result):
        own = [each for each in calls if each[0] == function] or calls[-1:]
        _, dtypes, low = own[0] if own else (None, _dtypes(result), None)
        if dtypes:
            self._add(CallKind(None, row, are_casts_on, dtypes, low, self._place()))

    def _note_emulation(self, computed, call, *args, **kwargs):
        before, self._emulated_in = self._emulated_in, call.low
        try:
            return computed(call, *args, **kwargs)
        finally:
            self._emulated_in = before

    # -- all functions -------------------------------------------------------------------------------------------------

    def called(self, name, function, args, kwargs):
        """Call a function, and count it."""
        if is_in_backward():  # a checkpoint is recomputed in a backward pass
            return function(*args, **kwargs)
        if self._calls_of_row is not None:
            dtypes = _dtypes((args, kwargs))
            if dtypes:
                self._calls_of_row.append((function, dtypes, self._emulated_in))
            return function(*args, **kwargs)
        if is_bookkeeping(skipped=1):  # that of ``FunctionCalls``
            return function(*args, **kwargs)
        if function in _COMPOSED:
            return self.opened(function, args, kwargs)
        rows = self._rows
        result = function(*args, **kwargs)
        if rows == self._rows:  # for a Python function, the functions of the op table that it calls are counted
            self._count(function, args, kwargs, result)
        return result

    def _count(self, function, args, kwargs, result):
        dtypes = _dtypes((args, kwargs))
        if dtypes and any(True for _ in tensors_in(result)):  # otherwise it queries a shape, or creates a tensor
            self._add(CallKind(function, None, self._are_casts_on(), dtypes, self._emulated_in, self._place()))

    def _add(self, kind):
        self.counts[kind] = self.counts.get(kind, 0) + 1


def _dtypes(value):
    """Return the dtypes of the floating-point tensors in a value, without duplicates, sorted by name."""
    found = {tensor.dtype for tensor in floating_tensors(value, [])}
    return tuple(found) if len(found) < 2 else tuple(sorted(found, key=str))
