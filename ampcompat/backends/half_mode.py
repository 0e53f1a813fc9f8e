"""Products of half tensors on a slow CPU, within a model whose weights are half (O2, O3, O5).

Owns: the list of functions that are products, and ``HalfMode``, which computes them by ``parts.half_math``.
Must not touch: torch's namespaces; these levels patch no function.
The surprise: a torch function mode is out of force in what it calls itself. So functions of torch's in Python that it
must see the inside of are run as copies that do not ask for modes. And autograd's engine leaves every mode behind, so a
checkpoint that is recomputed in backward has to enter it again.
"""

import types

import torch

from ..parts import half_math
from ..tables import op_rules, torch_facts
from . import compiling, placing
from .casts import BYTES, cast_all, floating_tensors, nested

_Mode = getattr(getattr(torch, "overrides", None), "TorchFunctionMode", object)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_tracing_state = getattr(torch._C, "_get_tracing_state", lambda: None)

#: Promoted rows that are products all the same.
_PRODUCTS = frozenset(["bilinear", "tensordot", "inner", "dot", "vdot"])
#: Functions of torch's in Python that products are hidden in.
_LOOKED_INTO = frozenset([torch.nn.functional.multi_head_attention_forward])
_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


_modes_in_force = getattr(getattr(torch, "overrides", None), "_get_current_function_mode_stack", list)


def choose(dtypes, models):
    """Return a ``HalfMode`` for the ``forward`` of models, or None where they do not need one.

    Args:
        dtypes: the ``DtypePair``.
        models: whose weights were cast to the low dtype.

    Returns:
        None where the dtype is fast, or no weight is on the CPU, or this torch has no function modes.
    """
    is_on_cpu = any(param.device.type == "cpu" for model in models for param in model.parameters())
    if not is_on_cpu or not torch_facts.has_function_modes() or not half_math.is_wanted(dtypes.low):
        return None
    return HalfMode(dtypes)


def as_now(function):
    """Return ``function`` running in the ``HalfMode`` that is in force in this thread now, if one is."""
    found = [] if compiling.is_compiling() else [mode for mode in _modes_in_force() if isinstance(mode, HalfMode)]
    if not found:
        return function

    def as_then(*args, **kwargs):
        with found[-1]:
            return function(*args, **kwargs)

    return as_then


class HalfMode(_Mode):
    """A context manager: products of low tensors on the CPU are computed in the high dtype and rounded.

    Args:
        dtypes: the ``DtypePair``.
    """

    def __init__(self, dtypes):
        super().__init__()
        self.low, self.high = dtypes
        self._products = _products()

    def context(self):
        """Return the mode itself, or None while a compiler or a tracer looks on."""
        return None if compiling.is_compiling() or _tracing_state() is not None else self

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        """Call ``function``, in the high dtype if it is a product."""
        kwargs = kwargs or {}
        if compiling.is_compiling():  # first of all: a compiler traces this too, and cannot follow the rest
            return function(*args, **kwargs)
        if function in self._products and self._is_for(args, kwargs):
            return self._computed(function, args, kwargs)
        if function in _LOOKED_INTO:
            with self:
                return _without_questions(function)(*args, **kwargs)
        return function(*args, **kwargs)

    def _is_for(self, args, kwargs):
        if "out" in kwargs or "out_dtype" in kwargs:
            return False
        found = floating_tensors(kwargs, floating_tensors(args, []))
        low = self.low
        return bool(found) and all(
            tensor.dtype is low
            and type(tensor) in _PLAIN
            and tensor.device.type == "cpu"
            and tensor.layout is torch.strided
            for tensor in found
        )

    def _computed(self, function, args, kwargs):
        call = half_math.WideCall(self.low, self.high)

        def widened(value):
            if isinstance(value, torch.Tensor):
                return call.widened(value) if value.dtype in BYTES else value
            return nested(widened, value) if isinstance(value, (tuple, list)) else value

        args, kwargs = cast_all(widened, args, kwargs)
        return call.run(function, args, kwargs)


def _products():
    """Return the functions themselves, not wrappers that a session which casts by function has put in their places."""
    rows = [row for row in op_rules.rows() if row.rule == op_rules.HALF or row.source[1] in _PRODUCTS]
    found = set()
    for owner, row in placing.place(rows):
        function = getattr(owner, row.name)
        while getattr(function, compiling.MARK, False):
            function = function.__wrapped__
        found.add(function)
    return frozenset(found)


def _without_questions(function):
    """Return a copy of a Python function that takes no notice of function modes."""
    never = dict.fromkeys(_QUESTIONS, lambda *tensors: False)
    names = dict(function.__globals__, **never)
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
