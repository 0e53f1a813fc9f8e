"""Emulated float16 and bfloat16 arithmetic on a CPU without fast half kernels, and the setting ``AMPCOMPAT_HALF_MATH``.

Inputs are rounded to half, computed in float32, and the results are rounded to half. A tensor core rounds at the same
points, since it accumulates in float32 too, so results differ from a GPU's only by the order of additions.
"""

import os

import torch

from ..errors import AmpError, AmpValueError
from ..nested import METHODS, map_items
from ..tensor_lists import is_shard
from ..torch_compat import cpu, fake_tensors, features, thread_context

#: "on": whatever the low dtype is; "off": never; "auto": decided by ``torch_compat.cpu``.
VARIABLE = "AMPCOMPAT_HALF_MATH"
SETTINGS = ("auto", "on", "off")

EMULATED = "emulated (computed in float32, inputs and results rounded)"
NOT_EMULATED = "torch's own kernels"


def setting():
    """Return the user's setting: "auto", "on" or "off"."""
    stated = os.environ.get(VARIABLE, "auto").strip().lower() or "auto"
    if stated not in SETTINGS:
        raise AmpValueError("{}={!r}: expected {}.".format(VARIABLE, stated, ", ".join(SETTINGS)))
    return stated


def choice(low):
    """Return (whether arithmetic in the dtype ``low`` on the CPU is emulated here, the reason in words)."""
    stated = setting()
    if stated != "auto":
        return stated == "on", "{}={}".format(VARIABLE, stated)
    return cpu.emulation(low)


def is_wanted(low):
    """Return whether arithmetic in the dtype ``low`` on the CPU is emulated here."""
    return choice(low)[0]


def describe(low):
    """Return the choice for the dtype ``low`` and its reason as text to print."""
    emulated, reason = choice(low)
    return "{}, because {}".format(EMULATED if emulated else NOT_EMULATED, reason)


def difference(low, emulates):
    """Return the warning that the ranks differ; ``emulates`` is a list of 0 and 1, by rank."""
    ranks = [", ".join(str(rank) for rank, each in enumerate(emulates) if each == kind) for kind in (1, 0)]
    return (
        "The ranks of this process group do not compute {} alike on their CPUs, so their results differ: it is {} on "
        "rank {}, and left to {} on rank {}. Set {}=on, or off, for all ranks.".format(
            str(low).replace("torch.", ""), EMULATED, ranks[0], NOT_EMULATED, ranks[1], VARIABLE
        )
    )


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
    return _cast(_cast(tensor, low), high)


class _SparseCast(torch.autograd.Function):
    """A cast of a sparse tensor. torch's own refuses gradients of another layout, which sparse products return."""

    @staticmethod
    def forward(ctx, tensor, dtype):
        ctx.dtype = tensor.dtype
        return tensor.to(dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(ctx.dtype), None


def _cast(tensor, dtype):
    if tensor.layout is torch.strided:
        return METHODS[dtype](tensor)
    return tensor if tensor.dtype is dtype else _SparseCast.apply(tensor, dtype)


def round_results(value, low):
    """Return floating results, alone or in a tuple or list, in the dtype ``low``."""
    if isinstance(value, torch.Tensor):
        return _cast(value, low) if value.is_floating_point() else value
    return map_items(lambda item: round_results(item, low), value) if isinstance(value, (tuple, list)) else value


class EmulatedCall:
    """One call in the high dtype on inputs that have the values of the low one.

    Backward needs the inputs in the high dtype again. The low tensors that they were cast from are saved instead,
    which is exact and takes half the memory.

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
        return self.widened(_cast(tensor, self.low))

    def widened(self, narrow):
        """Cast a tensor of the low dtype to the high one, and record the low one as its source."""
        wide = _cast(narrow, self.high)
        is_plain = wide.layout is torch.strided and not is_shard(wide)
        if self._keeps and is_plain and wide.numel() and wide.stride() == narrow.stride():
            self._sources[fake_tensors.address(wide)] = narrow.detach()
        return wide

    def run(self, function, args, kwargs):
        """Return ``function(*args, **kwargs)`` rounded to the low dtype; autograd saves the low inputs."""
        if not self._sources:
            return round_results(function(*args, **kwargs), self.low)
        saved = _SavedInputs(self._sources, self.high)
        try:
            with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
                result = function(*args, **kwargs)
        finally:
            saved.sources = {}  # autograd keeps the hooks alive; they must not keep inputs alive that it did not save
            self._sources = {}
        return round_results(result, self.low)


def _may_keep_low():
    """Return whether saved-tensor hooks can be used now: not in old torch, in torch.func or while tracing."""
    return (
        torch.is_grad_enabled()
        and features.has_nested_saved_tensor_hooks()
        and thread_context.takes_saved_tensor_hooks()
        and thread_context.functorch_level() is None
        and thread_context.jit_tracing_state() is None
        and not thread_context.in_selective_checkpoint()  # it keeps tensors past such hooks, and torch 2.15 warns
    )


class _SavedInputs:
    """The saved-tensor hooks of one call: an input is saved as its low source, any other tensor as it is.

    torch calls only the innermost hooks, so these call the user's (checkpointing, offloading).
    """

    __slots__ = ("sources", "high", "outer")

    def __init__(self, sources, high):
        self.sources = sources
        self.high = high
        self.outer = thread_context.saved_tensor_hooks()

    def pack(self, tensor):
        """Return what to save: the form to restore (None: the tensor as it is) and the tensor that is saved."""
        has_memory = tensor.dtype is self.high and tensor.layout is torch.strided and tensor.numel()
        source = self.sources.get(fake_tensors.address(tensor)) if has_memory else None
        if source is None:
            return None, tensor if self.outer is None else self.outer[0](tensor)
        form = (tensor.size(), tensor.stride(), source._version)
        return form, source if self.outer is None else self.outer[0](source)

    def unpack(self, packed):
        """Return the tensor for which ``pack`` returned this."""
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
