"""The values of small integer tensors on the CPU, beside their fake tensors: scripts choose samples and sizes by them.

A language model's batch is typically ``torch.stack([data[i : i + length] for i in torch.randint(…)])``.
"""

import torch

from ...engine.op_table.function_facts import having
from ...support.nested import map_items, tensors_in
from ...support.torch_compat import fake_tensors, thread_context

#: The largest tensor whose values are computed, in elements.
LARGEST = 1 << 20

_UNINITIALIZED = having("is_uninitialized")


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
