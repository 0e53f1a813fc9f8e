"""A dispatch mode that supplies what fake tensors do not have: values for the host, versions of lists of tensors.

It also remembers which operation failed.

The values are those of a normal step: everything is finite and nothing overflows. Small integer tensors on the CPU are
real tensors, since scripts choose samples and sizes by them: a language model's batch is typically
``torch.stack([data[i : i + length] for i in torch.randint(…)])``.
"""

import functools
import math

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...engine.op_table.function_properties import having
from ...observers.calls import OperationCalls
from ...support.containers import tensors_in
from ...support.torch_compat import fake_tensors, thread_context

#: Boolean results are read as True (``all``, ``isfinite``), except for those of these operations.
_FALSE = having("is_usually_false")

#: The largest tensor whose values are computed, in elements.
LARGEST = 1 << 20

_UNINITIALIZED = having("is_uninitialized")

_SELECTIONS = having("is_selection")

#: What the size of an operation's result follows from: the elements that it selects from its inputs, or broadcasting.
SELECTION, POINTWISE = "selection", "pointwise"


class AssumedValues(OperationCalls):
    """A context manager in which ``item()`` of a fake tensor is 1, a known integer, or as in a finite step.

    Attributes:
        failed: the name of the last operation that raised an error, or None.
        has_emptied: whether a tensor without elements was created after such an integer was read.
        integers_read: how many unknown integers were read from tensors: sizes may depend on them.
    """

    def __init__(self):
        from torch.utils.weak import WeakTensorKeyDictionary

        super().__init__()
        self.failed = None
        self.integers_read = 0
        self.has_emptied = False
        self._false = WeakTensorKeyDictionary()
        self._known = KnownIntegers()
        self._no_value = fake_tensors.data_dependent_error()
        self._loses_versions = fake_tensors.loses_versions()

    def called(self, function, args, kwargs):
        """Run an operation; supply a value if an unknown one is read."""
        if self._known.can_compute(function, args, kwargs):
            return _computed(function, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except self._no_value:
            if function is torch.ops.aten._local_scalar_dense.default:
                return self._value_of(args[0])
            if function is torch.ops.aten.equal.default:
                return True
            self.failed = str(function)
            raise
        except Exception:  # recorded and raised again
            self.failed = str(function)
            raise
        written = _written(function, args, kwargs) if function._schema.is_mutable else ()
        if self._loses_versions:
            self._count_versions(written)
        if self.integers_read and isinstance(result, torch.Tensor) and not result.numel():
            self.has_emptied = True
        if self._known.has_result(function, args, kwargs, result):
            return _computed(function, args, kwargs)
        self._known.forget(written)
        if isinstance(result, torch.Tensor) and result.dtype is torch.bool:
            if function.__name__.partition(".")[0] in _FALSE:
                self._false[result] = True
        return result

    @staticmethod
    def _count_versions(written):
        for each in written:
            if isinstance(each, (list, tuple)):
                torch.autograd.graph.increment_version([item for item in each if isinstance(item, torch.Tensor)])

    def _value_of(self, tensor):
        if tensor.dtype is torch.bool:
            return tensor not in self._false
        if tensor.is_floating_point() or tensor.is_complex():
            return 1.0
        self.integers_read += 1
        return 1


class KnownIntegers:
    """Knows which integer and boolean tensors have their values: real ones that no unknown value was written to."""

    def __init__(self):
        self._unknown = {}  # address of a storage -> a weak reference, which keeps the address from being used again

    def can_compute(self, function, args, kwargs):
        """Return whether the result of an operation is known and needs no more memory than its inputs, or little."""
        size = _size_of_result(function)
        given = list(tensors_in([args, kwargs])) if size else []
        if size == POINTWISE and math.prod(each.numel() for each in given) > LARGEST:
            return False
        return bool(given) and all(map(self._has, given))

    def has_result(self, function, args, kwargs, result):
        """Return whether a result is small, and known since all tensors in the arguments are."""
        results = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(results, (list, tuple)) or not results or not all(map(_can_be_known, results)):
            return False
        given = tensors_in([args, kwargs])
        is_known = all(each.numel() <= LARGEST and self._has(each) for each in given)
        return is_known and function.__name__.partition(".")[0] not in _UNINITIALIZED

    def forget(self, written):
        """Forget the values in the memory of tensors that were written to."""
        for tensor in tensors_in(written):
            if _can_be_known(tensor) and not fake_tensors.is_fake_type(type(tensor)):
                storage = tensor.untyped_storage()
                self._unknown[storage._cdata] = StorageWeakRef(storage)

    def _has(self, tensor):
        if not _is_integer(tensor) or fake_tensors.is_fake_type(type(tensor)):
            return False
        return not self._unknown or tensor.untyped_storage()._cdata not in self._unknown


@functools.lru_cache(maxsize=None)
def _size_of_result(function):
    """Return what the size of an operation's result follows from, or None."""
    is_read = function is torch.ops.aten._local_scalar_dense.default
    if is_read or function.is_view or function.__name__.partition(".")[0] in _SELECTIONS:
        return SELECTION
    return POINTWISE if torch.Tag.pointwise in function.tags else None


def _computed(function, args, kwargs):
    with thread_context.without_dispatch_modes():
        return function(*args, **kwargs)


def _written(function, args, kwargs):
    """Return the arguments that an operation writes to."""
    declared = [(place, each) for place, each in enumerate(function._schema.arguments) if each.alias_info is not None]
    found = [(place, each.name) for place, each in declared if each.alias_info.is_write]
    return [args[place] if place < len(args) else kwargs.get(name) for place, name in found]


def _can_be_known(tensor):
    return _is_integer(tensor) and tensor.numel() <= LARGEST


def _is_integer(tensor):
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
        return False
    return not (tensor.is_floating_point() or tensor.is_complex())
