"""Emulated float16 and bfloat16 arithmetic on a CPU without fast half kernels, and the setting ``AMPCOMPAT_HALF_MATH``.

Inputs are rounded to half, computed in float32, and the results are rounded to half. A tensor core rounds at the same
points, since it accumulates in float32 too, so results differ from a GPU's only by the order of additions. Sums that
torch makes in half on a CPU, in results and in gradients, are made in float32 likewise.
"""

import os

import torch

from ...errors import AmpError, AmpValueError
from ...support.containers import BYTES, CONTAINERS, METHODS, map_arguments, map_items
from ...support.tensor_lists import is_shard
from ...support.torch_compat import cpu, fake_tensors, features, thread_context
from ...support.torch_compat.torch_names import dtype_name
from .weight_cache import is_weight

#: "on": whatever the low dtype is; "off": never; "auto": decided by ``torch_compat.cpu``.
VARIABLE = "AMPCOMPAT_HALF_MATH"
SETTINGS = ("auto", "on", "off")

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_HANDLERS = ("__torch_function__", "__torch_dispatch__")


def _handlers(kind):
    found = [getattr(kind, name, None) for name in _HANDLERS]
    return [getattr(handler, "__func__", handler) for handler in found]


_DEFAULT_HANDLERS = [handler for kind in _PLAIN for handler in _handlers(kind)]

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
        return stated == "on", f"{VARIABLE}={stated}"
    return cpu.emulation(low)


def is_wanted(low):
    """Return whether arithmetic in the dtype ``low`` on the CPU is emulated here."""
    return choice(low)[0]


def describe(low):
    """Return the choice for the dtype ``low`` and its reason as text to print."""
    emulated, reason = choice(low)
    return f"{EMULATED if emulated else NOT_EMULATED}, because {reason}"


def difference(low, emulates):
    """Return the warning that the ranks differ; ``emulates`` is a list of 0 and 1, by rank."""
    ranks = [", ".join(str(rank) for rank, each in enumerate(emulates) if each == kind) for kind in (1, 0)]
    return (
        f"The ranks of this process group do not compute {dtype_name(low)} alike on their CPUs, so their results "
        f"differ: it is {EMULATED} on rank {ranks[0]}, and left to {NOT_EMULATED} on rank {ranks[1]}. "
        f"Set {VARIABLE}=on, or off, for all ranks."
    )


def is_for(args):
    """Return whether a call is emulated: the first tensor is on the CPU, and none has arithmetic of its own."""
    first = None
    for arg in args:
        for tensor in arg if isinstance(arg, (tuple, list)) else (arg,):
            if isinstance(tensor, torch.Tensor):
                first = tensor if first is None else first
                if type(tensor) not in _PLAIN and _has_own_arithmetic(tensor):
                    return False
    return first is not None and first.device.type == "cpu"


def repeats_elements(args, kwargs):
    """Return whether ``pad`` repeats elements: its gradient is a sum, and old torch has no half kernels for it."""
    return kwargs.get("mode", args[2] if len(args) > 2 else "constant") in ("replicate", "reflect")


def is_plain(kind):
    """Return whether a class is that of plain tensors or params; those of fake tensors stand in for them."""
    return kind in _PLAIN or fake_tensors.is_fake_type(kind)


def _has_own_arithmetic(tensor):
    """Return whether a tensor's class handles functions or operations itself. A DTensor's parts are plain tensors."""
    kind = type(tensor)
    if is_plain(kind) or is_shard(tensor):
        return False
    return any(handler not in _DEFAULT_HANDLERS for handler in _handlers(kind))


def rounded(tensor, low, high):
    """Return a tensor with the values of ``low`` in the dtype ``high``; its gradient is rounded on the way back too."""
    return _cast(_cast(tensor, low), high)


class _AnyLayoutCast(torch.autograd.Function):
    """A cast that takes gradients of another layout, as torch's own does not: those of sparse products and embeddings.

    A sparse gradient is added up before it is rounded.
    """

    @staticmethod
    def forward(ctx, tensor, dtype):
        ctx.dtype = tensor.dtype
        return tensor.to(dtype)

    @staticmethod
    def backward(ctx, gradient):
        is_narrowed = gradient.layout is torch.sparse_coo and BYTES[ctx.dtype] < BYTES[gradient.dtype]
        return (gradient.coalesce() if is_narrowed else gradient).to(ctx.dtype), None


def _cast(tensor, dtype):
    if tensor.layout is torch.strided:
        return METHODS[dtype](tensor)
    return tensor if tensor.dtype is dtype else _AnyLayoutCast.apply(tensor, dtype)


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
        rounded_weight: what ``rounded`` calls for a weight, or None.
    """

    # No ``__slots__`` here and in ``_SavedInputs``: the compiler of torch 2.1 fails where it reads one.

    def __init__(self, low, high, rounded_weight=None):
        self.low = low
        self.high = high
        self._rounded_weight = rounded_weight
        self._keeps = _may_keep_low()
        self._sources = {}

    def rounded(self, tensor):
        """Return a tensor rounded to the low dtype, in the high one."""
        if self._rounded_weight is not None and is_weight(tensor):
            return self._rounded_weight(tensor)
        return self.widened(_cast(tensor, self.low))

    def widened(self, narrow):
        """Cast a tensor of the low dtype to the high one, and record the low one as its source."""
        return self._recorded(narrow, _cast(narrow, self.high))

    def widened_for_any_gradient(self, narrow):
        """As ``widened``, for a tensor whose gradient may be sparse although it is dense."""
        return self._recorded(narrow, _AnyLayoutCast.apply(narrow, self.high))

    def _recorded(self, narrow, wide):
        is_nested = getattr(wide, "is_nested", False)  # its parts have strides of their own
        is_plain = wide.layout is torch.strided and not is_nested and not is_shard(wide)
        if self._keeps and is_plain and wide.numel() and wide.stride() == narrow.stride():
            self._sources[_address(wide)] = narrow.detach()
        return wide

    def computed(self, function, args, kwargs, widen):
        """Return ``function(*args, **kwargs)`` on the tensors that ``widen`` returns, rounded to the low dtype."""

        def widened(value):
            if isinstance(value, torch.Tensor):
                return widen(value) if value.dtype in BYTES else value
            return map_items(widened, value) if isinstance(value, CONTAINERS) else value

        args, kwargs = map_arguments(widened, args, kwargs)  # torch.compile of 2.2 fails in a call with *
        return self.run(function, args, kwargs)

    def run(self, function, args, kwargs):
        """Return ``function(*args, **kwargs)`` rounded to the low dtype; autograd saves the low inputs."""
        if not self._sources:
            return round_results(function(*args, **kwargs), self.low)
        saved = _SavedInputs(self._sources, self.high)
        try:
            with thread_context.SavedTensorHooks(saved.pack, saved.unpack):
                result = function(*args, **kwargs)
        finally:
            saved.sources = {}  # autograd keeps the hooks alive; they must not keep inputs alive that it did not save
            self._sources = {}
        return round_results(result, self.low)


def _address(tensor):
    return tensor.data_ptr() if type(tensor) in _PLAIN else fake_tensors.address(tensor)


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

    def __init__(self, sources, high):
        self.sources = sources
        self.high = high
        self.outer = thread_context.saved_tensor_hooks()

    def pack(self, tensor):
        """Return what to save: the form to restore (None: the tensor as it is) and the tensor that is saved."""
        has_memory = tensor.dtype is self.high and tensor.layout is torch.strided and tensor.numel()
        source = self.sources.get(_address(tensor)) if has_memory else None
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
                f"A tensor that is needed for its gradient was modified in place after it was used: {source.dtype} of "
                f"shape {tuple(source.size())} is at version {source._version}, expected {version}."
            )
        wide = METHODS[self.high](source)
        return wide if (wide.size(), wide.stride()) == (size, stride) else wide.as_strided(size, stride)
