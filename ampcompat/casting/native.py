"""Casts by torch's autocast, with wrappers that make it agree with the op table.

Autocast's flags belong to a thread, and only that thread can turn them off again. They are set for good in the main
thread, and in any other thread only while it is in the ``forward`` of an initialized model. Elsewhere the wrappers cast
without autocast, so that all threads cast alike, whenever they began, and none is left with a flag. Autocast's own
cache of weights is off, because it can return stale casts; ``weight_cache`` replaces it.
"""

import copy
import threading
from contextlib import contextmanager

import torch

from ..torch_compat import features
from . import autocast_flags, compile
from .autocast_flags import Flags
from .base import do_nothing
from .patched import PatchedBackend
from .thread_state import InRegion

_Tensor = torch.Tensor


class _ThreadState(threading.local):
    """The state of one thread.

    Attributes:
        entered: the ``CastDevices`` for which its flags are set, or None.
        before: its flags before that, in the main thread.
        pauses: for each pause that it is in, the innermost last: what ``Flags.restore`` takes, and the ``CastDevices``.
    """

    entered = None
    before = None

    def __init__(self):
        self.pauses = []


class NativeBackend(PatchedBackend):
    """Autocast on the devices that are cast, made to agree with the op table."""

    name = "native"

    def __init__(self, dtypes, rows=None, allow_banned=False, messages=None):
        self._available = tuple(features.read().autocast_devices)
        self._flags = Flags(self._available)
        self._thread = _ThreadState()
        self._paused_flags = _PausedFlags(self)
        super().__init__(dtypes, rows, allow_banned, messages)

    def _make_casts(self):
        casts = super()._make_casts()
        self._autocast_casts = copy.copy(casts)
        self._autocast_casts.is_exempt = self._make_exemption(is_autocast=True)
        return casts

    def _make_exemption(self, is_autocast=False):
        switch, local, flags, members = self._switch, self._switch.local, self._flags, self._thread
        is_tracing = compile.is_tracing

        def is_exempt(args, kwargs):
            if is_tracing():  # a compiler cannot follow thread-locals, and it guards on autocast's flags
                is_off = is_autocast or not compile.is_autocast_enabled(flags.devices)
                return is_off or switch.devices.is_exempt_traced(args)
            if local.off or (not flags.is_enabled() and members.entered is not None):  # as ``_is_switched_off``
                return True
            devices, first = switch.devices, args[0] if args else None
            if isinstance(first, _Tensor) and devices.has(first) and first.dim():
                return False
            return devices.is_exempt(args, kwargs)

        return is_exempt

    def _is_switched_off(self):
        """Return whether the user has turned off, in this thread, the autocast that we have turned on in it."""
        return not self._flags.is_enabled() and self._thread.entered is not None

    def _agrees_with_autocast(self, row):
        if row.no_nested_casts or not autocast_flags.IS_BY_DEVICE:  # what older torch casts has not been tested
            return False
        return all(device in row.native for device in self._flags.devices)

    def _casts_for(self, row):
        return self._autocast_casts if self._agrees_with_autocast(row) else self._casts

    def open(self, patches, on_move=do_nothing):
        patches.defer(self._leave)
        super().open(patches, on_move)
        if not self._is_limited_to_regions and threading.current_thread() is threading.main_thread():
            self._thread.before = self._flags.read()
            self._update_flags()

    def _leave(self):
        members = self._thread
        if members.before is not None:
            self._flags.write(members.before)
            members.before = members.entered = None
            members.pauses[:] = [((), None)] * len(members.pauses)  # those that end later restore nothing

    def set_devices(self, types):
        super().set_devices(types)
        self._flags.choose(self._available if types is None else sorted(types))
        members = self._thread
        if members.before is not None:
            for device, state in self._flags.read()[0].items():
                members.before[0].setdefault(device, state)
            self._update_flags()

    def stop(self):
        super().stop()
        self._leave()

    def _update_flags(self):
        """Set the flags of the main thread, where they stay set, for the devices that are cast now."""
        members = self._thread
        if not self._switch.local.off and members.entered is not self._switch.devices:
            self._flags.write(members.before)
            self._flags.enter(self.dtypes.low)
            members.entered = self._switch.devices

    def active(self):
        return not self._switch.local.off and not self._is_switched_off()

    def paused(self):
        if compile.is_tracing():
            return compile.autocast_off(self._flags.devices or self._available)
        return self._paused_flags

    _paused_inside = paused

    def entered(self):
        members = self._thread
        if self._switch.local.uncast:
            return self.region()
        if self._switch.local.off or members.entered is self._switch.devices:
            return None
        if members.before is not None:  # the main thread, after another thread has moved a model to another device
            self._update_flags()
            return None
        return self._with_flags_on()

    @contextmanager
    def _with_flags_on(self):
        before = self._flags.read(), self._thread.entered
        self._flags.enter(self.dtypes.low)
        self._thread.entered = self._switch.devices
        try:
            yield
        finally:
            self._set_flags(*before)

    def _set_flags(self, flags, entered):
        self._flags.write(flags)
        self._thread.entered = entered

    @contextmanager
    def region(self):
        with InRegion(self._switch), self._with_flags_on():
            yield

    def bind_casts(self, function):
        call_with_casts = super().bind_casts(function)
        bound = self._flags.read(), self._thread.entered

        def with_flags(*args, **kwargs):
            before = self._flags.read(), self._thread.entered
            self._set_flags(*bound)
            try:
                return call_with_casts(*args, **kwargs)
            finally:
                self._set_flags(*before)

        return with_flags


class _PausedFlags:
    """Context manager: wrappers and autocast off in this thread. It can be entered again within itself."""

    __slots__ = ("_backend",)

    def __init__(self, backend):
        self._backend = backend

    def __enter__(self):
        backend = self._backend
        switch = backend._switch
        switch.change_pauses(1)
        backend._thread.pauses.append((backend._flags.leave(), switch.devices))

    def __exit__(self, *exc_info):
        backend = self._backend
        switch = backend._switch
        was, devices = backend._thread.pauses.pop()
        backend._flags.restore(was)
        switch.change_pauses(-1)
        if switch.devices is not devices and backend._thread.before is not None:
            backend._update_flags()
