"""Half arithmetic at the speed of float32, for a CPU that has no half units.

Owns: the rounding points of such arithmetic (inputs rounded to half, float32 inside, results rounded to half), what
autograd keeps of it, and the setting ``AMPCOMPAT_HALF_MATH``.
Must not touch: any device with half units; the caller asks ``is_for`` first.
The surprise: these are the rounding points of a tensor core, which adds up in float32 too, so that results differ from
a GPU's only by the order of additions. Autograd wants the float32 inputs again in backward; it is made to keep the half
tensors that they came from, which is exact and half as large.
"""

import os

import torch

from ..errors import AmpError, AmpValueError
from ..tables import torch_facts
from .casting import METHODS

#: "on": whatever the low dtype is; "off": never; "auto": where the low dtype is slow on this CPU.
VARIABLE = "AMPCOMPAT_HALF_MATH"
SETTINGS = ("auto", "on", "off")

_functorch_level = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)
_tracing_state = getattr(torch._C, "_get_tracing_state", lambda: None)


def setting():
    """Return the user's setting: "auto", "on" or "off"."""
    stated = os.environ.get(VARIABLE, "auto").strip().lower() or "auto"
    if stated not in SETTINGS:
        raise AmpValueError("{}={!r}: expected {}.".format(VARIABLE, stated, ", ".join(SETTINGS)))
    return stated


def is_wanted(low):
    """Return whether arithmetic in the dtype ``low`` on the CPU is to be done by this room."""
    stated = setting()
    return stated == "on" or (stated == "auto" and not torch_facts.fast_on_cpu(low))


def is_for(args):
    """Return whether the first tensor among arguments (nested in tuples and lists) is on the CPU."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return arg.device.type == "cpu"
        if isinstance(arg, (tuple, list)) and arg and isinstance(arg[0], torch.Tensor):
            return arg[0].device.type == "cpu"
    return False


def rounded(tensor, low, high):
    """Return a tensor with the values of ``low`` in the dtype ``high``; its gradient is rounded on the way back too."""
    return METHODS[high](METHODS[low](tensor))


def round_results(value, low):
    """Return floating results, alone or in a tuple or list, in the dtype ``low``."""
    if isinstance(value, torch.Tensor):
        return METHODS[low](value) if value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)([round_results(item, low) for item in value])
    return value


class WideCall:
    """One call in the high dtype on inputs that have the values of the low one.

    Args:
        low, high: the dtypes.
    """

    __slots__ = ("low", "high", "_keeps", "_sources")

    def __init__(self, low, high):
        self.low = low
        self.high = high
        self._keeps = _may_keep_low()
        self._sources = {}

    def rounded(self, tensor):
        """Return a tensor rounded to the low dtype, in the high one."""
        return self.widened(METHODS[self.low](tensor))

    def widened(self, narrow):
        """Return a tensor of the low dtype in the high one, and remember where it came from."""
        wide = METHODS[self.high](narrow)
        if self._keeps and wide.numel() and wide.stride() == narrow.stride():
            self._sources[wide.data_ptr()] = narrow.detach()
        return wide

    def run(self, function, args, kwargs):
        """Return ``function(*args, **kwargs)`` rounded to the low dtype; autograd keeps low inputs."""
        if not self._sources:
            return round_results(function(*args, **kwargs), self.low)
        saved = _SavedInputs(self._sources, self.high)
        try:
            with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
                result = function(*args, **kwargs)
        finally:
            saved.sources = {}  # autograd holds on to the hooks, and must not hold inputs that it did not save
            self._sources = {}
        return round_results(result, self.low)


def _may_keep_low():
    """Return whether autograd can be told here and now what to keep: not by old torch, in torch.func, or in a tracer."""
    return (
        torch.is_grad_enabled()
        and torch_facts.has_nested_saved_tensor_hooks()
        and torch._C._autograd._saved_tensors_hooks_is_enabled()
        and _functorch_level() is None
        and _tracing_state() is None
    )


class _SavedInputs:
    """The hooks of one call: an input is kept as the low tensor that it came from, anything else as it is.

    Only the innermost hooks count, so those of a user (checkpointing, offloading) are called from here.
    """

    __slots__ = ("sources", "high", "outer")

    def __init__(self, sources, high):
        self.sources = sources
        self.high = high
        self.outer = torch._C._autograd._top_saved_tensors_default_hooks(False)

    def pack(self, tensor):
        """Return what to keep instead of ``tensor``: the form to give back, None for its own, and the kept tensor."""
        source = self.sources.get(tensor.data_ptr()) if tensor.dtype is self.high and tensor.numel() else None
        if source is None:
            return None, tensor if self.outer is None else self.outer[0](tensor)
        form = (tensor.size(), tensor.stride(), source._version)
        return form, source if self.outer is None else self.outer[0](source)

    def unpack(self, packed):
        """Return the tensor for which ``pack`` kept this."""
        form, kept = packed
        source = kept if self.outer is None else self.outer[1](kept)
        if form is None:
            return source
        size, stride, version = form
        if self.outer is None and source._version != version:
            raise AmpError(
                "A tensor that is needed for its gradient was modified in place after it was used: {} of shape {} is "
                "at version {}, expected {}.".format(source.dtype, tuple(source.size()), source._version, version)
            )
        wide = METHODS[self.high](source)
        return wide if (wide.size(), wide.stride()) == (size, stride) else wide.as_strided(size, stride)
