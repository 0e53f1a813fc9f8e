"""Records the calls of torch's functions in one training step: by module, with the producers of their inputs.

A function mode records the public functions, which are those of the op table. Functions that only return another view
of a tensor create no new value: the result of ``view`` is the value of its input. Values are numbered, and tensors are
referenced weakly, so the record of a step does not keep its memory allocated.
"""

import weakref
from typing import List, NamedTuple, Optional, Tuple

import torch

from ...engine.op_table.function_properties import functional, having
from ...observers.calls import FunctionCalls
from ...observers.hooks import before_call
from ...observers.places import OUTSIDE, ModuleStack, OpPlace
from ...support.containers import floating_tensors
from ...support.patching import PatchStack

_COMPOSED = functional("is_composed")
_VIEWS, _PROPERTIES = having("is_view"), having("is_property")
_DTYPE_METHODS, _NORMS, _SOFTMAXES = having("changes_dtype"), having("is_norm"), having("is_softmax")


class Value(NamedTuple):
    """A floating-point tensor of a step.

    ``kind``: param, buffer, input (it comes from outside the record) or result. ``name``: of a param or buffer.
    ``call``: the index of the call that created it, or None. ``place``: of that call.
    """

    index: int
    kind: str
    name: str
    dtype: torch.dtype
    dims: int
    call: Optional[int]
    place: "OpPlace"


class OpCall(NamedTuple):
    """One call of a function, in the call ``module_call`` of a module.

    ``outer``: the function, recorded call by call, that made it, or None. ``scalars``: the numbers among its arguments.
    ``target``: the requested dtype of a conversion or a factory function, or None; ``like``: the value whose dtype the
    module read last.
    """

    index: int
    op: str
    place: OpPlace
    module_call: int
    inputs: Tuple[int, ...]
    outputs: Tuple[int, ...]
    scalars: Tuple[float, ...]
    outer: Optional[str]
    target: Optional[torch.dtype]
    like: Optional[int]


class RecordedStep(NamedTuple):
    """The record of one step: calls, values, and the values that were losses of backward passes."""

    calls: List[OpCall]
    values: List[Value]
    losses: List[int]


class OpCalls(FunctionCalls):
    """A function mode that records steps from ``begin`` to ``end``; otherwise it only forwards calls.

    Args:
        on_value: called as ``on_value(index, tensor)`` with every new value.
        on_detail: called as ``on_detail(index, details)`` with the input of a norm and its variance over mean square
            per channel, and with that of a softmax and the gaps between its two largest numbers.
    """

    ignored = having("is_outside_forward")

    def __init__(self, on_value, on_detail):
        super().__init__()
        self._on_value, self._on_detail = on_value, on_detail
        self._is_on = False
        self._modules = ModuleStack(self._forget_like, self._add_tensors)
        self._hooks = PatchStack()  # of the step
        self._reset()

    def _reset(self):
        self._calls, self._values, self._losses = [], [], []
        self._known = {}  # id(tensor) -> (weak reference, index of its value)
        self._arguments = set()  # the ids of the floating tensors that a model was called with
        self._outer = self._like = None

    def add_models(self, models):
        """Add these models and the names of their modules to the known ones."""
        self._modules.add_models(models)

    def models(self):
        """Return the models that still exist, each with its number."""
        return self._modules.models()

    # -- a step --------------------------------------------------------------------------------------------------------

    def begin(self):
        """Start recording."""
        self._reset()
        self._tensors = {}
        self._modules.begin_step()
        self._modules.start()
        for number, model in self.models():
            self._add_tensors(number, model)
        self._is_on = True

    def _add_tensors(self, number, model):
        for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, tensor in named:
                self._tensors.setdefault(id(tensor), (kind, name, OpPlace(number, name.rpartition(".")[0])))
        before_call(self._hooks, model, self._take_arguments)

    def _take_arguments(self, model, args, kwargs):
        if self._modules.caller().model is not None:
            return  # a model within another
        for tensor in floating_tensors(kwargs, floating_tensors(args, [])):
            self._arguments.add(id(tensor))
            reference, index = self._known.get(id(tensor), (None, None))
            if reference is not None and reference() is tensor and self._values[index].kind == "input":
                self._values[index] = self._values[index]._replace(place=OUTSIDE)  # another hook has accessed it

    def add_loss(self, loss):
        """Note that a backward pass starts from this tensor."""
        if self._is_on:
            self._losses.append(self._index(loss))

    def end(self):
        """End recording and return the ``RecordedStep``."""
        self._is_on = False
        self._modules.stop()
        self._hooks.undo()
        step = RecordedStep(self._calls, self._values, self._losses)
        self._reset()
        return step

    def _forget_like(self):
        self._like = None

    # -- calls ---------------------------------------------------------------------------------------------------------

    def called(self, name, function, args, kwargs):
        """Call a function, and record it while a step is recorded."""
        if not self._is_on or not (torch.is_grad_enabled() or self._modules.is_training):
            return function(*args, **kwargs)
        if name == "__get__":
            name = function.__self__.__name__
            if name == "dtype" and args[0].is_floating_point():
                self._like = self._index(args[0])
            return self._viewed(function, args, kwargs) if name in _PROPERTIES else function(*args, **kwargs)
        if name in _VIEWS:
            return self._viewed(function, args, kwargs)
        if function in _COMPOSED:
            before, self._outer = self._outer, name
            try:
                return self.opened(function, args, kwargs)
            finally:
                self._outer = before
        return self._called(name, function, args, kwargs)

    def _viewed(self, function, args, kwargs):
        result = function(*args, **kwargs)
        sources = floating_tensors(args, [])
        if sources:
            index = self._index(sources[0])
            for tensor in floating_tensors(result, []):
                self._known[id(tensor)] = weakref.ref(tensor), index
        return result

    def _called(self, name, function, args, kwargs):
        tensors = floating_tensors(kwargs, floating_tensors(args, []))
        if name in _NORMS or name.endswith("_"):  # they write to their arguments, whose earlier values are recorded
            for tensor in tensors:
                self._index(tensor)
        if name in _NORMS:
            self._on_detail(self._index(tensors[0]), _variance_share(name, tensors[0], args, kwargs))
        elif name in _SOFTMAXES and tensors:
            self._on_detail(self._index(tensors[0]), _gaps(name, tensors[0], args, kwargs))
        result = function(*args, **kwargs)
        results = floating_tensors(args[:1] if name == "__setitem__" else result, [])
        if not results:  # it queries the shape, or compares
            return result
        inputs = tuple([self._index(tensor) for tensor in tensors])
        if name in _DTYPE_METHODS and tensors and results[0] is tensors[0]:
            result = results[0] = result.view_as(result)  # at another level, it is a different tensor
        place, module_call = self._modules.current()
        call = len(self._calls)
        outputs = tuple([self._add(tensor, "result", "", place, call) for tensor in results])
        scalars = tuple([float(value) for value in list(args) + list(kwargs.values()) if type(value) in (int, float)])
        target = results[0].dtype if name in _DTYPE_METHODS or not inputs or kwargs.get("dtype") is not None else None
        self._calls.append(
            OpCall(call, name, place, module_call, inputs, outputs, scalars, self._outer, target, self._like)
        )
        return result

    def _index(self, tensor):
        reference, index = self._known.get(id(tensor), (None, None))
        if reference is not None and reference() is tensor:
            return index
        kind, name, place = self._tensors.get(id(tensor), ("input", "", OUTSIDE))
        if kind == "input" and id(tensor) not in self._arguments:
            place = self._modules.current()[0]  # a tensor stored in the module
        return self._add(tensor, kind, name, place, None)

    def _add(self, tensor, kind, name, place, call):
        index = len(self._values)
        self._values.append(Value(index, kind, name, tensor.dtype, tensor.dim(), call, place))
        self._known[id(tensor)] = weakref.ref(tensor), index
        self._on_value(index, tensor)
        return index


# -- how close to one another the inputs of norms and softmaxes are ----------------------------------------------------


def _variance_share(name, tensor, args, kwargs):
    """Return variance over mean square of a norm's input, per channel or position; 0 if all values are equal."""
    with torch.no_grad():
        values = tensor.detach()
        if name == "layer_norm":
            shape = kwargs.get("normalized_shape") or args[1]
            dims = list(range(values.dim() - len(tuple(shape)), values.dim()))
        elif name == "batch_norm":
            dims = [dim for dim in range(values.dim()) if dim != 1]
        else:
            groups = kwargs.get("num_groups") or args[1] if name == "group_norm" else values.shape[1]
            values, dims = values.reshape(values.shape[0], groups, -1), [2]
        square = values.pow(2).mean(dims)
        return (square - values.mean(dims).pow(2)).clamp_min(0) / square.clamp_min(1e-30)


def _gaps(name, tensor, args, kwargs):
    """Return the differences between the largest and the second largest inputs of a softmax."""
    with torch.no_grad():
        values = tensor.detach()
        dim = 1 if name == "cross_entropy" else kwargs.get("dim", args[1] if len(args) > 1 else -1)
        dim = -1 if dim is None or values.dim() == 1 else dim
        if values.shape[dim] < 2:
            return torch.zeros_like(values)
        largest, second = values.topk(2, dim)[0].unbind(dim)
        return largest - second
