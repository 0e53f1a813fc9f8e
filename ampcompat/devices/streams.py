"""Streams, events and markers of a device whose work is done in order.

Owns: the stand-ins of ``torch.cuda.Stream``, ``Event``, their context managers, ``torch.cuda.device``, and of nvtx.
Must not touch: the order of anything: whatever is asked to wait has nothing to wait for.
The surprise: events carry real times of this host. Where the device works by itself it is waited for when an event is
recorded, so that ``elapsed_time`` is the time of the work between.
"""

import functools
import threading
import time

import torch

from ..errors import AmpValueError
from . import refusals


class Stream:
    """A queue of work that is done at once."""

    _target = _machinery = None
    cuda_stream = 0

    def __init__(self, device=None, priority=0, **kwargs):
        index = self._target.index(device)
        self.device_index = self._target.current if index is None else index
        self.device = torch.device("cuda", self.device_index)
        self.priority = priority

    def wait_event(self, event):
        """Do nothing: the event is past."""

    def wait_stream(self, stream):
        """Do nothing: the other stream's work is done."""

    def record_event(self, event=None):
        """Record an event here and return it."""
        event = self._machinery.Event() if event is None else event
        event.record(self)
        return event

    def query(self):
        """Return True: all work is done."""
        return True

    def synchronize(self):
        """Wait for the device."""
        self._target.synchronize()

    @staticmethod
    def priority_range():
        """Return the lowest and the highest priority."""
        return 0, -1

    def __enter__(self):
        self._machinery.entered().append(self)
        return self

    def __exit__(self, *exc_info):
        self._machinery.entered().pop()


class Event:
    """A moment."""

    _target = None
    cuda_event = 0

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self._has_timing = enable_timing
        self._time = None

    def record(self, stream=None):
        """Take the time, when the work so far is done."""
        self._target.synchronize()
        self._time = time.perf_counter()

    def wait(self, stream=None):
        """Do nothing: it is past."""

    def query(self):
        """Return True: what was recorded is done."""
        return True

    def synchronize(self):
        """Wait for the device."""
        self._target.synchronize()

    def elapsed_time(self, end_event):
        """Return the milliseconds from this event to another."""
        if not (self._has_timing and end_event._has_timing):
            raise AmpValueError("elapsed_time needs two events made with enable_timing=True.")
        if self._time is None or end_event._time is None:
            raise AmpValueError("elapsed_time needs two events that were recorded.")
        return (end_event._time - self._time) * 1000.0

    def ipc_handle(self):
        """Refuse."""
        raise refusals.refusal("torch.cuda.Event.ipc_handle", self._target, "it shares an event of a GPU")

    @classmethod
    def from_ipc_handle(cls, device, handle):
        """Refuse."""
        raise refusals.refusal("torch.cuda.Event.from_ipc_handle", cls._target, "it shares an event of a GPU")


class StreamContext:
    """Make a stream the current one of this thread; None changes nothing."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exc_info):
        if self.stream is not None:
            self.stream.__exit__(*exc_info)


class DeviceContext:
    """Make an index the current one inside: ``torch.cuda.device``."""

    _target = None

    def __init__(self, device):
        self.idx = self._target.index(device)
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = self._target.current
        if self.idx is not None and self.idx >= 0:
            self._target.current = self.idx

    def __exit__(self, *exc_info):
        self._target.current = self.prev_idx
        return False


class TensorDeviceContext(DeviceContext):
    """Make the index of a tensor the current one inside: ``torch.cuda.device_of``."""

    def __init__(self, obj):
        super().__init__(obj.get_device() if obj.is_cuda else None)


class _Machinery:
    """The names of ``torch.cuda`` about streams and devices, for one target."""

    def __init__(self, target):
        self._local = threading.local()
        self._own = {"_target": target, "_machinery": self, "__module__": "torch.cuda"}
        self.Stream, self.Event = self._class("Stream", Stream), self._class("Event", Event)
        self.device = self._class("device", DeviceContext)
        self.device_of = self._class("device_of", TensorDeviceContext)
        self.stream = self.StreamContext = self._class("StreamContext", StreamContext)
        self._default = self.Stream()

    def _class(self, name, base):
        return type(name, (base,), dict(self._own, __doc__=base.__doc__))

    def entered(self):
        """Return the streams that this thread is inside of."""
        if not hasattr(self._local, "entered"):
            self._local.entered = []
        return self._local.entered

    def current_stream(self, device=None):
        """Return the stream that this thread is inside of."""
        return self.entered()[-1] if self.entered() else self._default

    def default_stream(self, device=None):
        """Return the stream of whoever is inside of none."""
        return self._default

    def set_stream(self, stream):
        """Make a stream the current one of this thread from now on."""
        if stream is not None:
            self.entered()[-1:] = [stream]


def stand_in(target, original):
    """Return what takes the place of a name of ``torch.cuda``; the same under all its names."""
    if "streams" not in target.shared:
        target.shared["streams"] = _Machinery(target)
    return getattr(target.shared["streams"], original.__name__)


def nvtx(target, original):
    """Return a function of ``torch.cuda.nvtx`` that counts how deep it is and marks nothing."""
    depth = target.shared.setdefault("nvtx", threading.local())

    @functools.wraps(original)
    def mark(*args, **kwargs):
        before = getattr(depth, "count", 0)
        if original.__name__ == "range_start":
            return 0
        depth.count = max(before - 1, 0) if original.__name__ == "range_pop" else before + 1
        return min(before, depth.count)

    return mark


class _NoMarks:
    """A context that marks nothing."""

    def __init__(self, enabled=True, record_shapes=False):
        self.enabled = enabled

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        return False


def emit_nvtx(target, original):
    """Return the context of ``torch.autograd.profiler.emit_nvtx``, which marks nothing."""
    return type("emit_nvtx", (_NoMarks,), {"__module__": original.__module__, "__doc__": original.__doc__})
