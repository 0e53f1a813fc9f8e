"""``Switch``: whether casts are on in the calling thread, by the state of the process and the thread's one record.

The record says whether this thread pauses casts or is in a region, whose autocast flags are set in it, and for which
thread it computes. Code that must run later as it would now, a recomputed checkpoint for one, gets the whole record.

Autocast's flags belong to a thread, and only that thread can turn them off again. They are set for good in the main
thread, and in any other thread only while it is in the ``forward`` of an initialized model. Elsewhere the wrappers cast
without autocast, so that all threads cast alike, whenever they began, and none is left with a flag.
"""

import functools
import os
import threading
import weakref

import torch

from ...support.torch_compat import features
from .torch_compile import end_graph, is_tracing

_switches = weakref.WeakSet()
#: Whether the compiler of this torch ends its graph where autocast's flags are set.
_FLAGS_END_GRAPHS = features.is_version_within(newest="2.11")


def _forget_threads():
    for switch in list(_switches):
        switch.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def _begin_thread(record):
    record.pauses = []


class Switch:
    """On or off for the process, and the other way for a while in one thread.

    Args:
        flags: the ``autocast_flags.Flags`` to set where casts are on, or None.
        low: the dtype for them.
    """

    def __init__(self, flags=None, low=None):
        # Each switch has its own class of records, whose attribute ``off`` is the state of the process. A thread
        # shadows it while it pauses or is in a region. So one attribute read is enough, and closing the backend reaches
        # every thread. The rest of a thread's record:
        #   pauses: for each pause that it is in, the flags as they were, and the devices
        #   inside: whether it is in a region
        #   uncast: whether it is in the ``forward`` of a model at a level that casts no functions
        #   entered: the ``CastDevices`` for which its flags are set, or None
        #   before: in the main thread, its flags before that
        #   copies: the copies of weights that it keeps while it is in the ``forward`` of an initialized model, or None
        #   cached: in the main thread, the weights of which autocast keeps copies (``AutocastCache``), or None
        at_first = {"off": True, "inside": False, "uncast": False, "entered": None, "before": None, "copies": None}
        at_first["cached"] = None
        self._process_state = type("Record", (threading.local,), dict(at_first, __init__=_begin_thread))
        self.local = self._process_state()
        self.flags, self._low = flags, low
        #: The ``argument_casts.CastDevices``: on which devices tensors are cast.
        self.devices = None
        self._is_off = True
        _switches.add(self)
        self.forget_threads()

    def forget_threads(self):
        """Count only the calling thread, as far as it pauses casts or is in a region."""
        # One item per thread: unlike additions to a number, ``append`` and ``pop`` need no lock.
        self.pausing, self._inside = [None] * bool(self.local.pauses), [None] * self.local.inside

    @property
    def is_off_somewhere(self):
        """Whether casts are off for the process or paused in any thread.

        Compiled code uses this, because torch.compile guards on plain attributes and not on thread-locals.
        """
        return bool(self.pausing) or (self._is_off and not self._inside)

    def is_on(self):
        """Return whether casts are on in this thread; a user may turn off the autocast that we have turned on in it."""
        if self.local.off:
            return False
        return self.flags is None or self.flags.is_enabled() or self.local.entered is None

    def casts_without_flags(self):
        """Return whether this thread casts by the wrappers alone: its autocast flags were never set."""
        return not self.local.off and self.local.entered is None and not is_tracing()

    def turn_on(self):
        """Turn casts on in every thread that does not pause them, and the flags of the main thread if it calls this."""
        self._process_state.off = self._is_off = False
        if self.flags is not None and threading.current_thread() is threading.main_thread():
            self.local.before = self.flags.read()
            self.update_flags()

    def turn_off(self):
        """Turn casts off in every thread, except in those that are in a region."""
        self._process_state.off = self._is_off = True
        local = self.local
        if local.before is not None:
            self.flags.write(local.before)
            local.before = local.entered = None
            local.pauses[:] = [((), None)] * len(local.pauses)  # those that end later restore nothing

    def update_flags(self):
        """Set the flags of the main thread, where they stay set, for the devices that are cast now."""
        local = self.local
        if local.before is None or local.off or local.entered is self.devices:
            return
        for device, state in self.flags.read()[0].items():
            local.before[0].setdefault(device, state)
        self.flags.write(local.before)
        self.flags.enter(self._low)
        local.entered = self.devices

    def record(self):
        """Return a copy of this thread's record and its flags, for ``exchange``."""
        return dict(vars(self.local), pauses=list(self.local.pauses)), self.flags and self.flags.read()

    def exchange(self, record):
        """Give this thread another record and flags; return its own."""
        own, mine = self.record(), vars(self.local)
        self._count(mine, list.pop)
        mine.clear()
        mine.update(record[0], pauses=list(record[0]["pauses"]))
        self._count(mine, lambda threads: threads.append(None))
        if self.flags is not None:
            self.flags.write(record[1])
        return own

    def _count(self, mine, change):
        for threads, counts in ((self.pausing, mine["pauses"]), (self._inside, mine.get("inside"))):
            if counts:
                change(threads)


class Paused:
    """Context manager: casts off in this thread. A class, for speed: it is entered at every backward.

    It can be entered again within itself.
    """

    __slots__ = ("_switch",)

    def __init__(self, switch):
        self._switch = switch

    def __enter__(self):
        if is_tracing():
            end_graph()
        switch = self._switch
        mine = vars(switch.local)  # of this thread; a dict is faster than several reads of a thread-local
        if not mine["pauses"]:
            mine["off"] = True
            switch.pausing.append(None)
        was = []
        for is_enabled, set_enabled, _, _ in () if switch.flags is None else switch.flags.chosen:
            was.append((set_enabled, is_enabled()))
            set_enabled(False)
        mine["pauses"].append((was, switch.devices))

    def __exit__(self, *exc_info):
        """End this thread's last pause. After all of them its region decides, and outside a region the process."""
        switch = self._switch
        mine = vars(switch.local)
        was, devices = mine["pauses"].pop()
        for set_enabled, enabled in was:
            set_enabled(enabled)
        if not mine["pauses"]:
            if mine.get("inside"):
                mine["off"] = False
            else:
                mine.pop("off", None)
            switch.pausing.pop()
        if switch.devices is not devices:
            switch.update_flags()


class WithFlags:
    """Context manager: autocast's flags set in this thread, if the switch has any."""

    __slots__ = ("_switch", "_flags", "_entered")

    def __init__(self, switch):
        self._switch = switch

    def __enter__(self):
        switch = self._switch
        if switch.flags is not None:
            if _FLAGS_END_GRAPHS and is_tracing():
                end_graph()  # without the compiler's warning
            self._flags, self._entered = switch.flags.read(), switch.local.entered
            switch.flags.enter(switch._low)
            switch.local.entered = switch.devices

    def __exit__(self, *exc_info):
        switch = self._switch
        if switch.flags is not None:
            switch.flags.write(self._flags)
            switch.local.entered = self._entered


class InRegion(WithFlags):
    """Context manager: casts on in this thread, even if they are off for the process or paused outside.

    Args:
        keeps_copies: it is one forward pass, in which copies of weights are kept.
    """

    __slots__ = ("_keeps_copies", "_own")

    def __init__(self, switch, keeps_copies=False):
        super().__init__(switch)
        self._keeps_copies = keeps_copies

    def __enter__(self):
        own, flags = self._switch.record()
        copies = {} if self._keeps_copies else None
        self._own = self._switch.exchange(
            (dict(own, off=False, inside=True, pauses=[], copies=copies, cached=None), flags)
        )
        super().__enter__()

    def __exit__(self, *exc_info):
        self._switch.exchange(self._own)


class InForward(WithFlags):
    """Context manager of one forward pass: copies of weights are kept, and autocast's flags set where they are not."""

    __slots__ = ("_sets_flags", "_copies")

    def __enter__(self):
        switch, local = self._switch, self._switch.local
        self._sets_flags, self._copies = local.entered is not switch.devices, local.copies
        if self._sets_flags:
            super().__enter__()
        if self._copies is None:
            local.copies = {}
            if local.before is not None:
                local.cached = {}
                torch.clear_autocast_cache()

    def __exit__(self, *exc_info):
        local = self._switch.local
        local.copies = self._copies
        if self._copies is None and local.cached is not None:
            local.cached = None
            torch.clear_autocast_cache()
        if self._sets_flags:
            super().__exit__(*exc_info)


def cast_around_regions(switch, autocast_cache, patches):
    """Set autocast's flags around a region that a script opens in a thread which casts without them.

    So ``torch.autocast(enabled=False)`` turns casts off there, as in the main thread. A region may have another dtype,
    which autocast's cache ignores: it is cleared.
    """
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    @functools.wraps(enter)
    def __enter__(region):
        autocast_cache.clear()
        flags = WithFlags(switch) if switch.casts_without_flags() else None
        if flags is not None:
            flags.__enter__()
        vars(region).setdefault("_amp_flags", []).append(flags)
        return enter(region)

    @functools.wraps(leave)
    def __exit__(region, *exc_info):
        result = leave(region, *exc_info)
        entered = vars(region).get("_amp_flags")  # empty or absent: the region was entered before
        flags = entered.pop() if entered else None
        if flags is not None:
            flags.__exit__(*exc_info)
        return result

    patches.set(torch.autocast, "__enter__", __enter__)
    patches.set(torch.autocast, "__exit__", __exit__)
