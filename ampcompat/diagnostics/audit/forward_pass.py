"""What is seen of one training step: the dtypes at the borders of layers, and casts to float32 that are undone.

Nothing is watched once functions have been compiled: a function mode would compile them again.
"""

import sys
import weakref
from typing import Any, NamedTuple, Optional, Tuple

import torch

from ...engine.casting.torch_compile import compiled_graphs, is_compiling
from ...engine.op_table import expansion
from ...engine.op_table.function_properties import having
from ...observers.calls import FunctionCalls
from ...observers.hooks import after_call
from ...support.containers import floating_tensors
from ...support.patching import PatchStack
from ...support.script_frames import is_library, script_line
from ...support.torch_compat.features import version_of
from ...support.torch_compat.torch_names import dtype_name
from .weight_updates import HALF

_DTYPE_METHODS, _VIEWS = having("changes_dtype"), having("is_view")
_HALF_FUNCTIONS = frozenset(row.name for row in expansion.rows() if row.rule == expansion.HALF)

#: Integers that a half dtype may not be able to hold.
_INTEGERS = (torch.int16, torch.int32, torch.int64)


class LayerDtypes(NamedTuple):
    """A layer's name and class; the names of the dtypes of what it gets, of its own params and of what it returns."""

    name: str
    layer: str
    inputs: Tuple[str, ...]
    weights: Tuple[str, ...]
    outputs: Tuple[str, ...]


class ForwardPasses:
    """Watches from the end of one step of an optimizer to its next one, once.

    Attributes:
        layers: ``{LayerDtypes: number of calls}``; None if functions have been compiled.
        casts: its ``ExplicitCasts``.
    """

    def __init__(self):
        self.layers, self.casts = {}, ExplicitCasts()
        self._casts_nothing = False  # autocast regions were entered, and no function got a half tensor
        self._optimizer, self._patches, self._has_begun, self._regions = None, PatchStack(), False, 0
        self._graphs = compiled_graphs()

    def begin(self, models, optimizer, regions):
        """Begin, unless it has been called before: ``optimizer`` has stepped.

        Args:
            regions: how many autocast regions were entered before.
        """
        if self._has_begun:
            return
        self._optimizer, self._has_begun, self._regions = weakref.ref(optimizer), True, regions
        if compiled_graphs() > self._graphs:
            self.layers = None
            return
        modules = [each for model in models for each in model.named_modules()]
        for name, module in {id(each): (name, each) for name, each in reversed(modules)}.values():
            is_layer = next(module.children(), None) is None or next(module.parameters(recurse=False), None) is not None
            if is_layer and not isinstance(module, torch.jit.ScriptModule):
                after_call(self._patches, module, self._called, name)
        self._patches.defer(self.casts.stop)
        self.casts.start()

    def end(self, optimizer=None, regions=0):
        """End, if it has begun with this optimizer, or with any; ``regions``: how many were entered until now."""
        if self._optimizer is not None and optimizer in (None, self._optimizer()):
            is_seen = regions > self._regions and compiled_graphs() == self._graphs
            self._casts_nothing = is_seen and not self.casts.sees_half
            self._optimizer = None
            self._patches.undo()

    def may_see_half(self, regions):
        """Return whether a function has got a half tensor, or may have: in ``regions``, if they were not seen."""
        return self.casts.sees_half or (bool(regions) and not self._casts_nothing)

    def _called(self, name, module, args, output):
        if is_compiling() or not torch.is_grad_enabled():
            return
        key = LayerDtypes(name, type(module).__name__, _names(args), _names(module._parameters), _names(output))
        self.layers[key] = self.layers.get(key, 0) + 1


def _names(value):
    return tuple(sorted({dtype_name(each.dtype) for each in floating_tensors(value, [])}))


class UndoneCast(NamedTuple):
    """A call that casts the result of an explicit cast to float32 to half, as autocast does.

    ``cast`` and ``call``: the lines of the script, ``(file, line)``; ``function`` and ``dtype``: what casts, to what;
    ``rounded``: of integers, the number that half cannot hold, a tensor of shape (), or None if they were half before.
    """

    cast: Tuple[str, int]
    call: Tuple[str, int]
    function: str
    dtype: torch.dtype
    rounded: Optional[Any]


class ExplicitCasts(FunctionCalls):
    """A function mode that follows the results of ``float()``, of half tensors and of integers, to their use.

    Attributes:
        undone: the ``UndoneCast`` of each pair of lines.
        sees_half: whether a function has got a half tensor.
    """

    def __init__(self):
        super().__init__()
        self.undone, self.sees_half = {}, False
        self._results = {}  # id(tensor) -> (weak reference, version, the line of the cast, whether of integers)

    def stop(self):
        """Get no more calls."""
        self.is_paused = True  # in a thread that cannot be reached from this one
        super().stop()
        self._results = {}

    def called(self, name, function, args, kwargs):
        """Call a function, and note what it casts."""
        result = function(*args, **kwargs)
        if name == "__get__":
            name = getattr(function.__self__, "__name__", "")  # a property, where ``Tensor.data`` is replaced
        elif not self.sees_half:
            self.sees_half = any(each.dtype in HALF for each in floating_tensors([args, kwargs], []))
        if name in _DTYPE_METHODS and args[0].dtype in HALF + _INTEGERS:
            is_explicit = not is_library(sys._getframe(2).f_code.co_filename)
            if is_explicit and isinstance(result, torch.Tensor) and result.dtype is torch.float32 and result.dim():
                self._follow(result, script_line(), args[0].dtype in _INTEGERS)
        elif self._results and name in _VIEWS:
            followed = self._followed(args[0])
            for tensor in floating_tensors(result, []) if followed is not None else ():
                self._follow(tensor, *followed)
        elif self._results and name in _HALF_FUNCTIONS:
            self._note(name, floating_tensors(kwargs, floating_tensors(args, [])), floating_tensors(result, []))
        return result

    def _follow(self, tensor, line, is_integer):
        self._results[id(tensor)] = weakref.ref(tensor), version_of(tensor), line, is_integer

    def _followed(self, tensor):
        reference, version, *followed = self._results.get(id(tensor), (None, None))
        return followed if reference is not None and reference() is tensor and version_of(tensor) == version else None

    def _note(self, name, inputs, results):
        if not results or any(each.dtype not in HALF for each in results):
            return
        dtype, has_weights = results[0].dtype, any(isinstance(each, torch.nn.Parameter) for each in inputs)
        for tensor in inputs:
            line, is_integer = self._followed(tensor) or (None, None)
            key = line, script_line()
            if line is None or key in self.undone or (is_integer and has_weights):  # data is rounded as any input is
                continue
            with torch.no_grad():
                rounded = (tensor.to(dtype) != tensor).sum() if is_integer else None
            self.undone[key] = UndoneCast(*key, name, dtype, rounded)
