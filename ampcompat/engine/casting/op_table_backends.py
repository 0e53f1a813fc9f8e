"""The backends that cast: wrappers around the functions of the op table, and in one of them torch's autocast beside.

Wrappers work on any torch. As in Apex, they cast only what Python calls, not what C++ calls inside a function; autocast
does that. A backend can be opened and undone many times; cached copies do not outlive one opening.
"""

from contextlib import contextmanager, nullcontext

from ...support.torch_compat import features
from ..op_table import expansion as op_rules
from ..op_table.cast_rules import PROMOTED_BY_TORCH, PROMOTED_IN_PLACE_BY_TORCH
from . import (
    autocast_flags,
    autograd,
    emulated_half_arithmetic,
    patch_targets,
    torch_code,
    torch_compile,
    wrappers,
)
from .argument_casts import ArgumentCaster, CastDevices
from .cast_backend import CastBackend
from .thread_state import InForward, InRegion, Paused, Switch, WithFlags, cast_around_regions


class OpTableBackend(CastBackend):
    """Casts by wrappers around the functions of the op table.

    Args:
        rows: the merged rows of ``op_table.expansion``; None means the table as it is written.
        allow_banned: cast the inputs of banned functions to the high dtype instead of refusing.
    """

    #: Whether torch's autocast casts too, on the devices that are cast.
    has_autocast = False

    def __init__(self, dtypes, rows=None, allow_banned=False):
        self.dtypes = dtypes
        self.rows = op_rules.rows() if rows is None else rows
        self.allow_banned = allow_banned
        self._available = tuple(features.read().autocast_devices)
        self._flags = autocast_flags.Flags(self._available) if self.has_autocast else None
        self._switch = Switch(self._flags, dtypes.low)
        self._switch.devices = CastDevices()
        self._paused = Paused(self._switch)
        self._emulate = emulated_half_arithmetic.is_wanted(dtypes.low)
        self._caster = ArgumentCaster(dtypes, self._switch, self._paused_inside)

    def _paused_inside(self):
        # A compiler traces such a function down to kernels, which no wrapper casts, so without autocast it needs no
        # pause. It cannot trace thread-locals either.
        return nullcontext() if self._flags is None and torch_compile.is_compiling() else self.paused()

    def open(self, patches, is_regional=False):
        placed = [
            (owner, row)
            for owner, row in patch_targets.place(self.rows)
            if wrappers.around or not _is_promoted_by_torch(row)
        ]
        patch_targets.replace_all(patches, [(owner, row.name, self._wrapper_of(row)) for owner, row in placed])
        codes = {code for owner, row in placed for code in wrappers.codes(getattr(owner, row.name))}
        # Torch 2.8 cannot compile them by themselves, since they read attributes of a ``threading.local``.
        codes |= {InForward.__enter__.__code__, InForward.__exit__.__code__}
        autograd.pause_backward(self, patches)
        torch_code.pause_loading(self, patches)
        torch_code.pause_offloading(self, patches)
        autograd.checkpoint_under_same_casts(self, patches)
        if self.has_autocast:
            cast_around_regions(self._switch, self._caster.autocast_cache, patches)
        torch_code.accept_any_floating_input(self._caster.is_exempt, patches)
        torch_code.reread_recurrent_kernels(patches)
        torch_code.turn_off_fast_paths(patches)
        torch_compile.patch_compile(patches, codes, [(emulated_half_arithmetic.EmulatedCall, "computed")])
        patches.defer(self._switch.turn_off)
        if not is_regional:
            self._switch.turn_on()

    def _wrapper_of(self, row):
        is_allowed = row.rule == op_rules.BANNED and self.allow_banned
        followed = row._replace(rule=op_rules.FLOAT) if is_allowed else row

        def make(function):
            wrapper = function
            if not _is_promoted_by_torch(row):
                wrapper = wrappers.wrapped(function, followed, self._caster, self._emulate)
            for observed in wrappers.around:
                wrapper = observed(row, wrapper)
            return wrapper

        return make

    def active(self):
        return self._switch.is_on()

    def paused(self):
        if self._flags is not None and torch_compile.is_tracing():
            return torch_compile.autocast_off(self._flags.devices or self._available)
        return self._paused

    def is_paused(self):
        """Return whether this thread pauses casts, other than in the ``forward`` of a model at another level."""
        is_off = self._switch.is_off_somewhere if torch_compile.is_tracing() else self._switch.local.off
        return is_off and not self._switch.local.uncast

    def entered(self):
        switch, local = self._switch, self._switch.local
        # Read in any case, so that the compiler guards on it: it traces operators without calling our wrappers.
        is_off = torch_compile.is_tracing() and switch.is_off_somewhere
        if not torch_compile.READS_THREADS and torch_compile.is_tracing():
            has_flags = self._flags is None or torch_compile.is_autocast_enabled(self._flags.devices)
            return None if is_off or has_flags else WithFlags(switch)
        if local.uncast:
            return self.region(keeps_copies=True)
        if local.off:
            return None
        # Without autocast, the wrappers apply in every thread.
        if self._flags is not None and local.entered is not switch.devices:
            if local.before is None:
                return WithFlags(switch) if torch_compile.is_tracing() else InForward(switch)
            switch.update_flags()  # the main thread, after another thread has moved a model to another device
        return None if torch_compile.is_tracing() or local.copies is not None else InForward(switch)

    def uncast_forward(self):
        # A compiler guards on what traced code reads of a thread, so that code must not change it.
        return self.paused() if torch_compile.is_tracing() else self._paused_and_marked()

    @contextmanager
    def _paused_and_marked(self):
        local = self._switch.local
        was, local.uncast = local.uncast, True
        try:
            with self.paused():
                yield
        finally:
            local.uncast = was

    def set_devices(self, types):
        if types is None or self._switch.devices.types != frozenset(types):
            self._switch.devices = CastDevices(types, self._rows_of_autocast(types))
        if self._flags is not None:
            self._flags.choose(self._available if types is None else sorted(types))
            self._switch.update_flags()

    def _rows_of_autocast(self, types):
        if not self.has_autocast or wrappers.around:  # an observer sees the inputs after the casts
            return frozenset()
        types = () if types is None else types
        names = op_rules.rows_of_autocast(features.version(), types)
        if self._emulate and "cpu" in types:
            names -= {row.name_for_autocast for row in self.rows if row.rule == op_rules.HALF}
        return names

    def stop(self):
        self._switch.turn_off()

    def region(self, keeps_copies=False):
        return InRegion(self._switch, keeps_copies)

    def bind_casts(self, function):
        switch, record = self._switch, self._switch.record()
        keeps_copies = record[0].pop("copies", None) is not None
        record[0].pop("cached", None)

        def call_with_casts(*args, **kwargs):
            own = switch.exchange(record)  # a thread of the autograd engine recomputes for this thread
            if keeps_copies:  # not those of the pass, which has ended
                switch.local.copies = {}
            try:
                return function(*args, **kwargs)
            finally:
                switch.exchange(own)

        return call_with_casts

    def clear_cache(self):
        copies = self._switch.local.copies
        if copies is not None:
            copies.clear()
            self._caster.autocast_cache.clear()

    def wrap(self, function, rule):
        return wrappers.wrapped(function, op_rules.OpRow(None, None, rule), self._caster)


def _is_promoted_by_torch(row):
    """Return whether torch itself does what a row says."""
    if row.rule not in (op_rules.PROMOTE, op_rules.FOLLOW_SELF) or row.source is None:
        return False
    if row.name in PROMOTED_IN_PLACE_BY_TORCH:
        return features.promotes_in_addcmul()
    return op_rules.out_of_place(row.name) in PROMOTED_BY_TORCH and features.promotes()


class PatchedBackend(OpTableBackend):
    """Wrappers alone, which work with any torch."""

    name = "patched"


class NativeBackend(OpTableBackend):
    """Wrappers, and autocast on the devices that are cast, made to agree with the op table."""

    name = "native"
    has_autocast = True
