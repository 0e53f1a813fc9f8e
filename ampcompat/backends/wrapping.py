"""What the two backends have in common: wrappers around functions, caches of weights, backward without casts.

Owns: ``WrappingBackend``.
Must not touch: torch's autocast, which is ``native``'s alone.
The surprise: a backend may be opened and undone many times; what it caches never outlives one opening.
"""

from contextlib import nullcontext

import torch

from ..parts import half_math
from ..parts.casting import METHODS
from ..tables import op_rules, torch_facts
from . import autograd, compiling, norms, placing, rnn, rules, scripting
from .base import CastBackend
from .cache import Parameter, WeightCache, is_weight, watch_data
from .casts import Casts
from .switch import NOTHING, Inside, Paused, Switch, Unpaused


class WrappingBackend(CastBackend):
    """Casts by wrappers placed where the rows say.

    Args:
        dtypes: the ``DtypePair``.
        rows: the merged rows of ``tables.op_rules``; None means the table as it is written.
        allow_banned: cast the inputs of banned functions to the high dtype instead of refusing.
        messages: {name: message} for banned functions; None means the table's.
    """

    def __init__(self, dtypes, rows=None, allow_banned=False, messages=None):
        self.dtypes = dtypes
        self.rows = op_rules.rows() if rows is None else tuple(rows)
        self.allow_banned = allow_banned
        self.messages = op_rules.banned_messages() if messages is None else messages
        self._switch = Switch()
        self._is_confined = False
        low, high = dtypes
        self._cache = WeightCache(METHODS[low])
        self._rounded_cache = WeightCache(lambda weight: half_math.rounded(weight, low, high))
        self._emulate = half_math.is_wanted(low)
        self._casts = self._make_casts()

    def _make_casts(self):
        switch, local, is_tracing = self._switch, self._switch.local, compiling.is_tracing
        return Casts(
            self.dtypes,
            inactive=lambda: switch.is_off_somewhere if is_tracing() else local.off,
            paused=self._paused_inside,
            weight_cast=self._low_of(),
            rounded_weight=self._rounded_of(),
            is_compiling=compiling.is_compiling,
        )

    def _paused_inside(self):
        # A compiler sees through a sealed function to kernels, which no wrapper casts here; and it cannot take a lock.
        return nullcontext() if compiling.is_compiling() else Paused(self._switch)

    def _low_of(self):
        low, cached, is_tracing = self.dtypes.low, self._cache.cast, compiling.is_tracing

        def low_of(tensor):
            # ``is_weight``, but for the call of it in the commonest case.
            if not is_tracing() and (type(tensor) is Parameter or is_weight(tensor)):  # a compiler must not meet caches
                return cached(tensor)
            return tensor.to(low)

        return low_of

    def _rounded_of(self):
        cached = self._rounded_cache.cast
        return lambda tensor, call: cached(tensor) if is_weight(tensor) else call.rounded(tensor)

    def open(self, patches):
        """Put the wrappers in place and turn them on, unless they are confined to regions."""
        originals = [
            placing.replace(patches, owner, row.name, self._wrapper_of(row))
            for owner, row in placing.place(self.rows)
            if self._needs_wrapper(row)
        ]
        scripting.script_originals(originals, patches)
        rnn.accept_any_floating_input(self._casts, patches)
        norms.compute_wide(self._casts, torch_facts.available_devices(), patches)
        rnn.look_up_anew(patches)
        autograd.pause_backward(self, patches)
        autograd.recompute_alike(self, patches)
        watch_data((self._cache, self._rounded_cache), patches)
        compiling.teach_names(patches)
        _turn_off_fast_paths(patches)
        if not self._is_confined:
            self._switch.turn_on()
        patches.defer(self.clear_cache)
        patches.defer(self._switch.turn_off)

    def _needs_wrapper(self, row):
        return True

    def _casts_for(self, row):
        return self._casts

    def _wrapper_of(self, row):
        rule = op_rules.FLOAT if row.rule == op_rules.BANNED and self.allow_banned else row.rule
        casts, message = self._casts_for(row), self.messages.get(row.name)
        emulate = self._emulate and row.source is not None
        return lambda function: rules.wrapped(function, rule, casts, row.sealed, message, emulate)

    def active(self):
        """Return whether a function called now, in this thread, would be cast."""
        return not self._casts.inactive()

    def paused(self):
        """Return a context manager with casts off in this thread."""
        return Paused(self._switch)

    def entered(self):
        """Return a context manager that does nothing: every thread sees the wrappers."""
        return NOTHING

    def confine(self):
        """Be open only where a thread stands in a ``region``."""
        self._is_confined = True

    def region(self):
        """Return a context manager with casts on in this thread."""
        return Inside(self._switch)

    def as_now(self, function):
        """Return ``function`` running under the casts, on or off, that are in force in this thread now."""
        local = self._switch.local
        context = Paused if local.off else Inside if local.inside else Unpaused

        def as_then(*args, **kwargs):
            with context(self._switch):
                return function(*args, **kwargs)

        return as_then

    def clear_cache(self):
        """Forget every cast of a weight."""
        self._cache.clear()
        self._rounded_cache.clear()

    def wrap(self, function, rule):
        """Return ``function`` obeying ``rule`` while casts are active."""
        return rules.wrapped(function, rule, self._casts)


def _turn_off_fast_paths(patches):
    """Keep nn.MultiheadAttention and its kin from calling one fused kernel that no row names (torch >= 1.13 or so)."""
    mha = getattr(torch.backends, "mha", None)
    if mha is not None and mha.get_fastpath_enabled():
        mha.set_fastpath_enabled(False)
        patches.defer(mha.set_fastpath_enabled, True)
