"""A dispatch mode that supplies what fake tensors do not have: values for the host, versions of lists of tensors.

It also remembers which operation failed.

The values are those of a normal step: everything is finite and nothing overflows. Small integer tensors on the CPU have
their real values, since scripts choose samples and sizes by them: a language model's batch is typically
``torch.stack([data[i : i + length] for i in torch.randint(…)])``.
"""

import torch

from ...engine.op_table.function_facts import having
from ...support.containers import map_items, tensors_in
from ...support.torch_compat import fake_tensors, thread_context
from ...trace.calls import OperationCalls

#: Boolean results are read as True (``all``, ``isfinite``), except for those of these operations.
_FALSE = having("is_usually_false")

#: The largest tensor whose values are computed, in elements.
LARGEST = 1 << 20

_UNINITIALIZED = having("is_uninitialized")


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
        self._written_lists = {}  # function -> places of the lists of tensors that it writes

    def called(self, function, args, kwargs):
        """Run an operation; supply a value if an unknown one is read."""
        if function is torch.ops.aten._local_scalar_dense.default:
            known = self._known.value_of(args[0])
            if known is not None:
                return known
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
        if self._loses_versions:
            self._count_versions(function, args)
        if self.integers_read and isinstance(result, torch.Tensor) and not result.numel():
            self.has_emptied = True
        self._known.compute(function, args, kwargs, result)
        if isinstance(result, torch.Tensor) and result.dtype is torch.bool:
            if function.__name__.partition(".")[0] in _FALSE:
                self._false[result] = True
        return result

    def _count_versions(self, function, args):
        places = self._written_lists.get(function)
        if places is None:
            arguments = enumerate(function._schema.arguments)
            places = [place for place, each in arguments if each.alias_info is not None and each.alias_info.is_write]
            self._written_lists[function] = places
        for written in [args[place] for place in places if place < len(args)]:
            if isinstance(written, (list, tuple)):
                torch.autograd.graph.increment_version([each for each in written if isinstance(each, torch.Tensor)])

    def _value_of(self, tensor):
        if tensor.dtype is torch.bool:
            return tensor not in self._false
        if tensor.is_floating_point() or tensor.is_complex():
            return 1.0
        self.integers_read += 1
        return 1


class KnownIntegers:
    """Computes operations on known integers and booleans for real, once more, and remembers their results."""

    def __init__(self):
        from torch.utils.weak import WeakTensorKeyDictionary

        self._values = WeakTensorKeyDictionary()  # fake tensor -> real tensor

    def of(self, tensor):
        """Return the real tensor of a tensor, or None if its values are not known."""
        return self._values.get(tensor) if fake_tensors.is_fake_type(type(tensor)) else tensor

    def value_of(self, tensor):
        """Return the value of a known tensor with one element, or None."""
        known = self.of(tensor) if _can_be_known(tensor) else None
        if known is None:
            return None
        with thread_context.without_dispatch_modes():
            return known.item()

    def compute(self, function, args, kwargs, result):
        """Compute an operation for real if its result is small and the values of all its tensors are known."""
        results = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(results, (list, tuple)) or not results or not all(map(_can_be_known, results)):
            return
        given = tensors_in([args, kwargs])
        is_known = all(_can_be_known(each) and self.of(each) is not None for each in given)
        if is_known and function.__name__.partition(".")[0] not in _UNINITIALIZED:
            self._compute(function, args, kwargs, results)
        elif function._schema.is_mutable:
            self._forget(results)

    def _compute(self, function, args, kwargs, results):
        args, kwargs = self._real(args), self._real(kwargs)
        with thread_context.without_dispatch_modes():
            real = function(*args, **kwargs)
        for fake, value in zip(results, [real] if isinstance(real, torch.Tensor) else real):
            self._values[fake] = value

    def _real(self, each):
        if isinstance(each, torch.Tensor):
            return self.of(each)
        return map_items(self._real, each) if isinstance(each, (tuple, list, dict)) else each

    def _forget(self, written):
        """Forget the values in the memory of tensors that were written to."""
        memory = {value.untyped_storage().data_ptr() for value in map(self.of, written) if value is not None}
        for fake, value in list(self._values.items()):
            if value.untyped_storage().data_ptr() in memory:
                del self._values[fake]


def _can_be_known(tensor):
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.numel() > LARGEST:
        return False
    return not (tensor.is_floating_point() or tensor.is_complex())
