"""Casts by torch's autocast, with wrappers for the rows on which autocast and the op table disagree.

Owns: ``NativeBackend``.
Must not touch: autocast's cache of weights, except to switch it off: it goes stale, ours does not.
The surprise: autocast's flags belong to a thread. They are set in the thread that opens the backend and in every thread
started afterwards; wrapped models enter them in threads that were there before.
"""

import functools
import threading

import torch

from ..tables import op_rules, torch_facts
from . import autocast_flags, compiling
from .autocast_flags import Flags
from .casts import Casts
from .switch import NOTHING, Inside
from .wrapping import WrappingBackend


class NativeBackend(WrappingBackend):
    """Autocast on every device of this machine, process-wide, made to agree with the rows."""

    name = "native"

    def __init__(self, dtypes, rows=None, allow_banned=False, messages=None):
        self._flags = Flags(torch_facts.read().autocast_devices)
        self._members = threading.local()
        super().__init__(dtypes, rows, allow_banned, messages)

    def _make_casts(self):
        local, is_enabled, is_tracing = self._switch.local, self._flags.is_enabled, compiling.is_tracing
        devices = self._flags.devices

        def inactive():
            if is_tracing():  # a compiler cannot follow thread-locals, and it guards on autocast's flags
                return not compiling.is_autocast_enabled(devices)
            return local.off or not is_enabled()

        def inactive_or_traced():
            return is_tracing() or local.off or not is_enabled()

        shared = dict(
            paused=self.paused,
            weight_cast=self._low_of(),
            rounded_weight=self._rounded_of(),
            is_compiling=compiling.is_compiling,
        )
        self._covered_casts = Casts(self.dtypes, inactive=inactive_or_traced, **shared)
        return Casts(self.dtypes, inactive=inactive, **shared)

    def _is_covered(self, row):
        if row.sealed or not autocast_flags.IS_BY_DEVICE:  # what older torch covers has not been probed: wrap it all
            return False
        return all(device in row.native for device in self._flags.devices)

    def _needs_wrapper(self, row):
        # Autocast casts a weight at each use, so rows that use weights get a wrapper for the sake of our cache.
        return row.rule == op_rules.HALF or not self._is_covered(row)

    def _casts_for(self, row):
        return self._covered_casts if self._is_covered(row) else self._casts

    def open(self, patches):
        """Turn autocast on and put the wrappers in place."""
        patches.defer(self._flags.write, self._flags.read())
        super().open(patches)
        patches.set(threading.Thread, "start", self._start_entered(threading.Thread.start))
        self._members = threading.local()
        if not self._is_confined:
            self._members.entered = True
            self._flags.enter(self.dtypes.low)

    def _start_entered(self, start):
        @functools.wraps(start)
        def start_entered(thread):
            run = thread.run

            def run_entered():
                del thread.run  # the class's own again, before the body can look
                with self.entered():
                    run()

            thread.run = run_entered
            start(thread)

        return start_entered

    def active(self):
        """Return whether a function called now, in this thread, would be cast."""
        return not self._switch.local.off and self._flags.is_enabled()

    def paused(self):
        """Return a context manager with casts off in this thread."""
        if compiling.is_compiling():
            return compiling.autocast_off(self._flags.devices)
        return _PausedFlags(self._switch, self._flags)

    def entered(self):
        """Return a context manager with autocast on in this thread, unless it is there already or paused."""
        if self._switch.local.off or getattr(self._members, "entered", False):
            return NOTHING
        return _Entered(self._flags, self._members, self.dtypes.low)

    def region(self):
        """Return a context manager with the wrappers and autocast on in this thread."""
        return _Region(self._switch, self._flags, self.dtypes.low)

    def as_now(self, function):
        """Return ``function`` running under the casts, on or off, that are in force in this thread now."""
        as_then = super().as_now(function)
        flags, state = self._flags, self._flags.read()

        def with_flags(*args, **kwargs):
            before = flags.read()
            flags.write(state)
            try:
                return as_then(*args, **kwargs)
            finally:
                flags.write(before)

        return with_flags


class _PausedFlags:
    """Context manager: wrappers and autocast off in this thread."""

    __slots__ = ("_switch", "_flags", "_was")

    def __init__(self, switch, flags):
        self._switch = switch
        self._flags = flags

    def __enter__(self):
        self._switch.pause()
        self._was = self._flags.leave()

    def __exit__(self, *exc_info):
        self._flags.restore(self._was)
        self._switch.resume()


class _Region(Inside):
    """Context manager: wrappers and autocast on in this thread."""

    __slots__ = ("_flags", "_low", "_before")

    def __init__(self, switch, flags, low):
        super().__init__(switch)
        self._flags = flags
        self._low = low

    def __enter__(self):
        super().__enter__()
        self._before = self._flags.read()
        self._flags.enter(self._low)

    def __exit__(self, *exc_info):
        self._flags.write(self._before)
        super().__exit__(*exc_info)


class _Entered:
    """Context manager: autocast on in a thread that did not have it."""

    __slots__ = ("_flags", "_members", "_low", "_before")

    def __init__(self, flags, members, low):
        self._flags = flags
        self._members = members
        self._low = low

    def __enter__(self):
        self._before = self._flags.read()
        self._flags.enter(self._low)
        self._members.entered = True

    def __exit__(self, *exc_info):
        self._members.entered = False
        self._flags.write(self._before)
