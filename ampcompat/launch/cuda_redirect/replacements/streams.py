"""Replacements for CUDA streams, events and markers on a device that executes work in order.

Events have real host times; an asynchronous device is synchronized when an event is recorded, so ``elapsed_time`` is
the time of the work in between. Waiting for an event or a stream does nothing.
"""

import abc
import contextlib
import threading
import time

import torch

from ....errors import AmpValueError
from . import unsupported


class _Synchronous:
    """Base class of streams and events: earlier work is always complete when they are queried."""

    _target = _names = None  # set in the classes that ``_StreamNames`` makes

    def query(self):
        """Return True."""
        return True

    def synchronize(self):
        """Wait for the device."""
        self._target.synchronize()


class Stream(_Synchronous):
    """A stream whose work is executed in order with all other work."""

    cuda_stream = 0

    def __init__(self, device=None, priority=0, **kwargs):
        index = self._target.index(device)
        self.device_index = self._target.current if index is None else index
        self.device = torch.device("cuda", self.device_index)
        self.priority = priority

    def wait_event(self, event):
        """Do nothing."""

    def wait_stream(self, stream):
        """Do nothing."""

    def record_event(self, event=None):
        """Record an event and return it."""
        event = self._names.Event() if event is None else event
        event.record(self)
        return event

    @staticmethod
    def priority_range():
        """Return the lowest and the highest priority."""
        return 0, -1

    def __enter__(self):
        self._names.stream_stack().append(self)
        return self

    def __exit__(self, *exc_info):
        self._names.stream_stack().pop()


class Event(_Synchronous):
    """An event with a host time."""

    cuda_event = 0

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self._has_timing = enable_timing
        self._time = None

    def record(self, stream=None):
        """Synchronize, and record the time."""
        self._target.synchronize()
        self._time = time.perf_counter()

    def wait(self, stream=None):
        """Do nothing."""

    def elapsed_time(self, end_event):
        """Return the milliseconds from this event to another."""
        if not (self._has_timing and end_event._has_timing):
            raise AmpValueError("elapsed_time needs two events created with enable_timing=True.")
        if self._time is None or end_event._time is None:
            raise AmpValueError("elapsed_time needs two events that were recorded.")
        return (end_event._time - self._time) * 1000.0

    def ipc_handle(self):
        """Raise an error."""
        raise unsupported.unsupported_error("torch.cuda.Event.ipc_handle", self._target, "it shares an event of a GPU")

    @classmethod
    def from_ipc_handle(cls, device, handle):
        """Raise an error."""
        name = "torch.cuda.Event.from_ipc_handle"
        raise unsupported.unsupported_error(name, cls._target, "it shares an event of a GPU")


class StreamContext:
    """A context in which a stream is the current one of this thread; None changes nothing."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exc_info):
        if self.stream is not None:
            self.stream.__exit__(*exc_info)


class DeviceContext:
    """``torch.cuda.device``: a context in which an index is the current one."""

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
    """``torch.cuda.device_of``: a context in which the index of a tensor is the current one."""

    def __init__(self, obj):
        super().__init__(obj.get_device() if obj.is_cuda else None)


class _StreamNames:
    """The replacements of names of ``torch.cuda`` for streams and devices, for one target."""

    def __init__(self, target):
        self._local = threading.local()
        self._own = {"_target": target, "_names": self, "__module__": "torch.cuda"}
        self.Stream, self.Event = self._new_class("Stream", Stream), self._new_class("Event", Event)
        self.device = self._new_class("device", DeviceContext)
        self.device_of = self._new_class("device_of", TensorDeviceContext)
        self.stream = self.StreamContext = self._new_class("StreamContext", StreamContext)
        self._default = self.Stream()

    def _new_class(self, name, base):
        return type(name, (base,), dict(self._own, __doc__=base.__doc__))

    def stream_stack(self):
        """Return the stack of streams of this thread."""
        if not hasattr(self._local, "stream_stack"):
            self._local.stream_stack = []
        return self._local.stream_stack

    def current_stream(self, device=None):
        """Return the current stream of this thread."""
        return self.stream_stack()[-1] if self.stream_stack() else self._default

    def default_stream(self, device=None):
        """Return the stream that is current outside of all contexts."""
        return self._default

    def set_stream(self, stream):
        """Set the current stream of this thread."""
        if stream is not None:
            self.stream_stack()[-1:] = [stream]


def replacement(target, original):
    """Return the replacement of a name of ``torch.cuda``; the same object in all modules that have the name."""
    if "streams" not in target.shared:
        target.shared["streams"] = _StreamNames(target)
    replaced = getattr(target.shared["streams"], original.__name__)
    if isinstance(original, abc.ABCMeta):  # before about torch 2.6, whose compiler checks whether it is one of torch's
        original.register(replaced)
    return replaced


class _NullContext(contextlib.nullcontext):
    """A context that does nothing."""

    def __init__(self, enabled=True, record_shapes=False):
        super().__init__(self)


def emit_nvtx(target, original):
    """Replace ``torch.autograd.profiler.emit_nvtx`` by a class of contexts that do nothing."""
    return type("emit_nvtx", (_NullContext,), {"__module__": original.__module__, "__doc__": original.__doc__})
