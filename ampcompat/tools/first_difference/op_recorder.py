"""Records the operations of a step below autograd, so that the backward pass is recorded like the forward pass.

A dispatch mode records the operations; a function mode, outside all others, notes which public function called them.
"""

import sys
import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...engine.op_table.function_facts import functional, having
from ...support.nested import tensors_in
from ...support.script_frames import is_library, is_marked
from ...support.torch_compat.thread_context import autograd_node, next_sequence_number
from ...trace.calls import FunctionCalls, OperationCalls
from ...trace.places import OUTSIDE as NO_MODULE
from ...trace.places import OpPlace
from . import step_record
from .step_record import COMPUTE, COPY, END, HIDDEN, OUTSIDE, RANDOM, RESULT, Ref, StepOp, StepValue

_UNSPECIFIC = functional("is_unspecific")
_COPIES, _UNINITIALIZED = having("is_copy"), having("is_uninitialized")
#: The tag of operations that draw random numbers.
_SEEDED = getattr(getattr(torch, "Tag", None), "nondeterministic_seeded", None)


class FunctionNames(FunctionCalls):
    """A function mode whose ``name`` is that of the running public function."""

    ignored = frozenset(("__get__", "backward"))

    def __init__(self):
        super().__init__()
        self.name = ""

    def called(self, name, function, args, kwargs):
        """Call a function, and note its name meanwhile."""
        if not name.isidentifier():
            return function(*args, **kwargs)
        before, self.name = self.name, name.strip("_") if name.startswith("__") else name
        try:
            if function in _UNSPECIFIC:
                return self.opened(function, args, kwargs)
            return function(*args, **kwargs)
        finally:
            self.name = before


class OpRecorder(OperationCalls):
    """A dispatch mode that records the operations of one step.

    Args:
        store: the ``TensorStore`` of the values.
        names: the ``FunctionNames``.
        modules: the ``ModuleStack``.
        params: ``{(model, name): tensor}`` of params and buffers.
        keeps_arguments: whether to keep arguments that can be computed from other values: views and conversions.

    Attributes:
        is_paused: whether operations are currently not part of the step.
    """

    def __init__(self, store, names, modules, params, keeps_arguments):
        super().__init__()
        self._store, self._names, self._modules = store, names, modules
        self._params = {id(tensor): name for name, tensor in params.items()}
        self._weights = {name: weakref.ref(tensor) for name, tensor in params.items()}
        self._fresh = set()  # the names of params that have had no gradient in this step
        self._lines = {}  # OpPlace -> the line of the script that called it last
        self._keeps_arguments = keeps_arguments
        self.ops, self.values, self.losses = [], [], []
        self.is_paused = False
        self._storages = {}  # address of a storage -> ``StorageValues``
        self._is_in_pass = False  # from the first operation of a backward pass on, until its gradients are noted
        self._nodes = {}  # sequence number of an autograd node -> index of the operation that made it
        self._next_node = next_sequence_number()

    def called(self, func, args, kwargs):
        """Call an operation and record it."""
        line, is_bookkeeping = _script_line()
        inputs = []
        if is_bookkeeping and autograd_node() is None:
            self.end_pass()
        is_left_out = func is torch.ops.aten._local_scalar_dense.default or func.namespace == "profiler"
        if self.is_paused or is_bookkeeping or is_left_out:
            self._next_node = next_sequence_number()
            result = func(*args, **kwargs)
            self._written(func, args, kwargs)
            for tensor in tensors_in(result):
                self._memory(tensor).is_made = True
            return result
        stored_args, stored_kwargs = self._template(args, inputs), self._template(kwargs, inputs)
        number = self._note_nodes()
        result = func(*args, **kwargs)
        self._written(func, args, kwargs)
        results = list(tensors_in(result))
        self._add_op(number, func, stored_args, stored_kwargs, tuple(inputs), results, line)
        return result

    def add_loss(self, loss):
        """Note that a backward pass starts from this tensor."""
        if not self.losses:
            self._fresh = {name for name, param in self._named_params() if param.grad is None}
        index = self._index(loss)
        self.losses.append(index)
        line = _script_line()[0]
        self.ops.append(
            StepOp(
                len(self.ops), "amp.loss.end", END, "forward", NO_MODULE, 0, "", line, (Ref(index),), {}, (index,), ()
            )
        )

    def end_pass(self):
        """Note the gradients of the params before they are unscaled; only those of the first pass.

        Later passes add to the gradients of the params, or of their masters.
        """
        if not self._is_in_pass:
            return
        self._is_in_pass = False
        for (number, name), param in self._named_params():
            gradient = param.grad if (number, name) in self._fresh else None
            if gradient is None or gradient.layout is not torch.strided:
                continue
            self._fresh.remove((number, name))
            module, _, own_name = name.rpartition(".")
            index, place = self._index(gradient), OpPlace(number, module)
            kernel = f"aten.gradient_of_{own_name}.end"
            line = self._lines.get(place, ("", 0))
            op = StepOp(len(self.ops), kernel, END, "backward", place, 0, "", line, (Ref(index),), {}, (index,), ())
            self.ops.append(op)

    # -- operations ----------------------------------------------------------------------------------------------------

    def _note_nodes(self):
        """Note that the autograd nodes created since the last operation belong to this one; return its index."""
        number, following = len(self.ops), next_sequence_number()
        for node in range(self._next_node, following):
            self._nodes[node] = number
        self._next_node = following
        return number

    def _add_op(self, number, func, args, kwargs, inputs, results, line):
        direction, place, module_call, function, line = self._where(line)
        if direction == "backward" and str(func).startswith("aten.add."):
            function = ""  # the engine sums the gradients of a value that is used more than once
        self._is_in_pass = self._is_in_pass or direction == "backward"
        kind = _kind(func)
        is_empty = str(func).split(".")[1] in _UNINITIALIZED
        op_number = None if is_empty else number
        outputs = []
        for tensor in results:
            self._memory(tensor).is_made = True
            outputs.append(self._add(tensor, HIDDEN if is_empty else RESULT, op_number, kind != COPY and not is_empty))
        outputs = tuple(outputs)
        self.ops.append(
            StepOp(
                number, str(func), COPY if is_empty else kind, direction, place, module_call, function, line, args,
                kwargs, inputs, outputs,
            )
        )  # fmt: skip

    def _where(self, line):
        node = autograd_node()
        if node is None:
            place, call = self._modules.current()
            self._lines[place] = line
            return "forward", place, call, self._names.name, line
        made = self._nodes.get(node._sequence_nr())
        is_custom = isinstance(node, torch.autograd.function.BackwardCFunction) and not _is_own(node)
        name = type(node).__name__ if is_custom else ""
        name = name[: -len("Backward")] if name.endswith("Backward") else name
        place, call = self._modules.current()
        if place is not NO_MODULE:  # a checkpoint is recomputed
            return "backward", place, call, self._names.name, line
        if made is None:
            return "backward", NO_MODULE, 0, name, line
        forward = self.ops[made]
        function = name or forward.function or step_record.readable(forward.base)
        return "backward", forward.place, forward.module_call, function, line if is_custom else forward.line

    def _written(self, func, args, kwargs):
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                for tensor in tensors_in(value):
                    self._memory(tensor).write(tensor)

    def _named_params(self):
        alive = [(name, reference()) for name, reference in self._weights.items()]
        return [(name, tensor) for name, tensor in alive if tensor is not None and tensor.is_leaf]

    # -- values --------------------------------------------------------------------------------------------------------

    def _template(self, value, inputs):
        if isinstance(value, torch.Tensor):
            inputs.append(self._index(value))
            return Ref(inputs[-1])
        if isinstance(value, (tuple, list)):
            return type(value)([self._template(each, inputs) for each in value])
        if isinstance(value, dict):
            return {key: self._template(each, inputs) for key, each in value.items()}
        return None if isinstance(value, torch.Generator) else value

    def _memory(self, tensor):
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse
            return StorageValues(None)
        found = self._storages.get(storage._cdata)
        if found is None:
            found = self._storages[storage._cdata] = StorageValues(storage)
        return found

    def _index(self, tensor):
        memory = self._memory(tensor)
        index = memory.known.get(_layout_of(tensor))
        return self._add(tensor, HIDDEN if memory.is_made else OUTSIDE, None, True) if index is None else index

    def _add(self, tensor, kind, op, is_kept):
        index = len(self.values)
        is_plain = tensor.layout is torch.strided and not tensor.is_meta
        is_kept = is_plain and (is_kept or self._keeps_arguments)
        param = self._params.get(id(tensor)) if kind == OUTSIDE else None
        key = self._store.put(tensor) if is_kept else None
        device = str(tensor.device)
        self.values.append(StepValue(index, kind, tensor.dtype, tuple(tensor.shape), device, param, op, key))
        self._memory(tensor).known[_layout_of(tensor)] = index
        return index


def _is_own(node):
    """Return whether an autograd function is one of ampcompat's."""
    return type(node)._forward_cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def _kind(func):
    name = str(func).split(".")[1]
    returns = func._schema.returns
    is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in returns)
    if is_view or name in _COPIES:
        return COPY
    return RANDOM if _SEEDED in func.tags else COMPUTE


def _script_line():
    """Return ``(file, line)`` of the script, and whether the operation is not part of the model's computation."""
    frame = sys._getframe(2)
    is_bookkeeping = False
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        is_bookkeeping = is_bookkeeping or is_marked(frame)
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno), is_bookkeeping


# -- the memory of values ----------------------------------------------------------------------------------------------


class StorageValues:
    """One storage.

    Attributes:
        known: ``{layout of a tensor: index of its value}``.
        is_made: whether it was created or written to in the step.

    Args:
        storage: the storage, or None. It is referenced weakly; its address is not reused as long as this object exists.
    """

    def __init__(self, storage):
        self._reference = None if storage is None else StorageWeakRef(storage)
        self.known, self.is_made = {}, False

    def write(self, tensor):
        """Forget the values that share memory with a tensor that is written to."""
        written, self.is_made = _layout_of(tensor), True
        self.known = {layout: index for layout, index in self.known.items() if not _overlap(layout, written)}


def _layout_of(tensor):
    """Return the layout of a strided tensor in its storage: dtype, offset, shape and strides."""
    try:
        return tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
    except (NotImplementedError, RuntimeError):  # sparse
        return tensor.dtype, 0, tuple(tensor.shape), ()


def _overlap(first, second):
    """Return whether two layouts of one storage may share memory; parts of rows, such as those of ``split``, do not."""
    if first[0] is not second[0]:
        return True
    (_, start, shape, strides), (_, other_start, other_shape, other_strides) = first, second
    extent, other_extent = _extent(shape, strides), _extent(other_shape, other_strides)
    if start + extent <= other_start or other_start + other_extent <= start:
        return False
    if strides != other_strides or not strides or max(strides) == 0:
        return True
    row = max(strides)
    widths = [_extent(sizes, strides, row) for sizes in (shape, other_shape)]
    places = start % row, other_start % row
    is_within_rows = all(place + width <= row for place, width in zip(places, widths))
    return not is_within_rows or (places[0] + widths[0] > places[1] and places[1] + widths[1] > places[0])


def _extent(shape, strides, row=None):
    """Return the number of elements from the first to the last one, inclusive, without steps of ``row``."""
    steps = [(size - 1) * stride for size, stride in zip(shape, strides) if stride != row]
    return sum(steps) + 1 if 0 not in shape else 0
