"""Emulated products and sums of half tensors on a CPU, for models whose weights are half (O2, O3, O5).

``HalfMode`` is a function mode that computes them by ``emulated_half_arithmetic``; these levels patch no function.
"""

import types

import torch

from ...opt_levels import DtypePair
from ...support.containers import METHODS, floating_tensors
from ...support.torch_compat import cpu, features, thread_context
from ..op_table import expansion
from ..op_table.cast_rules import EMULATED, GRADIENT_EMULATED, LOSSES_WITHOUT_OLD_KERNELS
from . import emulated_half_arithmetic, patch_targets, refused_calls, torch_compile

#: torchvision's operators (boxes, pooled regions), which lack half or bfloat16 kernels on a CPU (torchvision 0.29).
_TORCHVISION = "ops.torchvision"
#: Python functions of torch that call products, or write into a weight before. A function mode is off within the
#: function that it handles, so these run as copies that do not check for modes, with the mode entered again.
_WALKED_NAMES = ("multi_head_attention_forward", "embedding", "embedding_bag")
_WALKED_TYPES = frozenset(getattr(torch.nn.functional, name) for name in _WALKED_NAMES)
#: These may have sparse gradients of a dense weight.
_LOOKUPS = frozenset([torch.embedding, torch.embedding_bag])
_MODE_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def choose(dtypes, models):
    """Return a ``HalfMode`` for the ``forward`` of half models; None as ``mode_for``, or if no weight is on the CPU."""
    is_on_cpu = any(param.device.type == "cpu" for model in models for param in model.parameters())
    return mode_for(dtypes) if is_on_cpu else None


def mode_for(dtypes):
    """Return a ``HalfMode``, or None where the low dtype is not emulated or this torch has no function modes."""
    if not features.has_function_modes() or not emulated_half_arithmetic.is_wanted(dtypes.low):
        return None
    return HalfMode(dtypes)


def _active_modes():
    return [mode for mode in thread_context.function_modes() if isinstance(mode, HalfMode)]


def context_of(mode):
    """Return a ``HalfMode`` (or None) as it is, or None while a compiler or a tracer is running.

    No method: the compiler of torch 2.5 traces no method of a mode.
    """
    if mode is None or torch_compile.is_compiling() or thread_context.jit_tracing_state() is not None:
        return None
    return mode


def is_active():
    """Return whether a ``HalfMode`` is active in this thread."""
    return bool(_active_modes())


def leave():
    """Leave every ``HalfMode`` that is active in this thread: an interrupt may have kept Python, or torch, from it."""
    for mode in _active_modes():
        thread_context.remove_function_mode(mode)


def bind_casts(function):
    """Return ``function``, made to run in the ``HalfMode`` that is active in this thread now, if there is one.

    A checkpoint that is recomputed in backward needs it: the autograd engine runs without function modes.
    """
    found = [] if torch_compile.is_compiling() else _active_modes()
    if not found:
        return function

    mode = found[-1]

    def call_with_casts(*args, **kwargs):
        if mode in thread_context.function_modes():  # within the forward pass itself
            return function(*args, **kwargs)
        with mode:
            return function(*args, **kwargs)

    return call_with_casts


def keep_from_compiler(patches):
    """Make ``torch.compile`` leave a mode alone where Python calls it; undone by ``patches``.

    That of torch 2.5 returns the results of another function from compiled code of ``__torch_function__``.
    """
    methods = [(HalfMode, name) for name in ("_is_for", "_computed")]
    torch_compile.patch_compile(patches, {HalfMode.__torch_function__.__code__}, methods)


class HalfMode(thread_context.FunctionMode):
    """A context manager: products and sums of low tensors on the CPU are computed in the high dtype and rounded.

    So are functions that torch cannot compute in half there. Where only the gradient is a sum, the function is computed
    in the high dtype if it is recorded for a gradient.
    """

    def __init__(self, dtypes):
        super().__init__()
        self.low, self.high = dtypes
        self._emulated = _emulated_functions(self.low)
        self._widened = refused_calls.without_half_kernels(dtypes)  # a model may have stored torch's own functions

    def __exit__(self, *exc_info):
        if self in thread_context.function_modes():  # else ``leave`` was called within the block
            super().__exit__(*exc_info)

    def __reduce__(self):  # half is emulated, or not, as on the machine that loads the pickle
        return mode_for, (DtypePair(self.low, self.high),)

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        """Call ``function``, in the high dtype if it is a product, or has no kernel for the low one."""
        kwargs = kwargs or {}
        if torch_compile.is_compiling():  # checked first: a compiler traces this method too, but cannot trace the rest
            return function(*args, **kwargs)
        wanted = self._emulated.get(torch_compile.original(function))
        if wanted is None and (getattr(function, "__module__", None) or "").endswith(_TORCHVISION):
            wanted = _always
        if wanted is not None and wanted(args, kwargs) and self._is_for(args, kwargs):
            return self._computed(function, args, kwargs)
        if function in self._widened:
            return self._widened[function](*args, **kwargs)
        if function in _WALKED_TYPES:
            with self:
                return without_mode_checks(function)(*args, **kwargs)
        return function(*args, **kwargs)

    def _is_for(self, args, kwargs):
        if "out" in kwargs or "out_dtype" in kwargs:
            return False
        found = floating_tensors(kwargs, floating_tensors(args, []))
        low = self.low
        return bool(found) and all(
            tensor.dtype is low and emulated_half_arithmetic.is_plain(type(tensor)) and tensor.device.type == "cpu"
            for tensor in found
        )

    def _computed(self, function, args, kwargs):
        call = emulated_half_arithmetic.EmulatedCall(self.low, self.high)
        name = function.__name__
        if name.endswith("_") and not name.endswith("__"):  # in place
            return args[0].copy_(call.computed(function, args, kwargs, METHODS[self.high]))
        if function in _LOOKUPS and thread_context.functorch_level() is None:
            return call.computed(function, args, kwargs, call.widened_for_any_gradient)
        return call.computed(function, args, kwargs, call.widened)


def _always(args, kwargs):
    return True


def _has_self(args, kwargs):
    return bool(args)


def _is_recorded(args, kwargs):
    """Return whether a call is recorded for a gradient."""
    found = floating_tensors(kwargs, floating_tensors(args, [])) if torch.is_grad_enabled() else ()
    return any(tensor.requires_grad for tensor in found)


def _copies(args, kwargs):
    """Return whether ``t[index]`` copies elements, and is recorded for a gradient."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(map(_is_array, index)) and _is_recorded(args, kwargs)


def _is_array(index):
    """Return whether an index is a list or an array of numbers; one of shape () selects a view, as a number does."""
    if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
        return True
    return isinstance(index, (list, range)) or getattr(index, "ndim", 0) > 0


def _is_uncoalesced(args, kwargs):
    return args[0].layout is torch.sparse_coo and not args[0].is_coalesced()


#: Conditions on which a function that is named in ``cast_rules`` sums.
_CONDITIONS = {
    "__getitem__": _copies,
    "pad": emulated_half_arithmetic.repeats_elements,
    "coalesce": _is_uncoalesced,
    "to_dense": _is_uncoalesced,
}


def _emulated_functions(low):
    """Return {function: condition on (args, kwargs)}: torch's own functions, not the wrappers of O1 or O4."""
    rules = (expansion.HALF, expansion.FLOAT32_INSIDE)
    rows = [row for row in expansion.rows() if row.rule in rules]
    places = [(owner, row.name, _CONDITIONS.get(row.name, _always)) for owner, row in patch_targets.place(rows)]
    for names, condition in ((EMULATED, _always), (GRADIENT_EMULATED, _is_recorded)):
        for name in names.split():
            for owner in (torch, torch.nn.functional, torch.Tensor):
                if (owner, name) != (torch.Tensor, "unfold"):  # a view
                    places.append((owner, name, _CONDITIONS.get(name, condition)))
                    places.append((owner, name + "_", _has_self))
    found = {}
    for owner, name, condition in places:
        found.setdefault(torch_compile.original(getattr(owner, name, None)), condition)
    for function in _WALKED_TYPES.union([None]):
        found.pop(function, None)
    losses = [torch_compile.original(getattr(torch.nn.functional, each)) for each in LOSSES_WITHOUT_OLD_KERNELS.split()]
    found.update((each, _always) for each in losses if not cpu.computes_loss(each, low))
    return found


def without_mode_checks(function):
    """Return a copy of a Python function that does not check for function modes."""
    never = dict.fromkeys(_MODE_CHECKS, lambda *tensors: False)
    names = dict(function.__globals__, **never)
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
