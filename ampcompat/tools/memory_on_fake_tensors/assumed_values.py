"""A dispatch mode that supplies what fake tensors do not have: values for the host, versions of lists of tensors.

It also remembers which operation failed.

The values are those of a normal step: everything is finite and nothing overflows.
"""

import torch

from ...engine.op_table.function_facts import having
from ...support.torch_compat import fake_tensors, features
from .known_integers import KnownIntegers

if features.has_dispatch_modes():
    from torch.utils._python_dispatch import TorchDispatchMode as _Mode
else:
    _Mode = object

#: Boolean results are read as True (``all``, ``isfinite``), except for those of these operations.
_FALSE = having("is_usually_false")


class AssumedValues(_Mode):
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

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run an operation; supply a value if an unknown one is read."""
        device = fake_tensors.answered_device(function, args)
        if device is not None:
            return device
        if function is torch.ops.aten._local_scalar_dense.default:
            known = self._known.value_of(args[0])
            if known is not None:
                return known
        try:
            result = function(*args, **(kwargs or {}))
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
        self._known.compute(function, args, kwargs or {}, result)
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
