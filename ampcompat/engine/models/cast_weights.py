"""The cast of models' weights to half, with those of kept layers in float32, and its undoing.

A param stays the same object, so ties and references survive; only its data changes. ``ModelCast.originals`` holds the
float32 data until ``initialize`` has returned.
"""

import weakref

import torch

from ...errors import AmpError
from ...support import tensor_lists
from ...support.tensor_lists import data_of, set_data, set_stored_gradient, stored_gradient
from ..casting import emulated_half_arithmetic
from .wide_buffers import WIDE_BUFFERS, WideBuffers


class ModelCast:
    """The weights of some models, cast to another dtype.

    Args:
        dtype: the dtype of the weights from now on.
        high: the dtype to which kept weights are cast if they are narrower.
        patches: the ``PatchStack`` that casts every tensor back to its dtype: while this object exists with the data
            from before the cast, later with its data at that time.
    """

    def __init__(self, dtype, high, patches):
        self.dtype = dtype
        self.high = high
        self.originals = {}  # id(param) -> (its data, its gradient) before the cast
        self._patches = patches
        #: module -> [(whether it is a param, its name, its dtype before)] of params and buffers, [its ``WideBuffers``]
        self._before = {}
        self._dtypes = {}  # id(param or buffer) -> its dtype before

    def cast(self, modules, kept):
        """Cast the floating params and buffers of ``modules``; widen those that a module in ``kept`` (a list) owns.

        DTensors stay as they are (see ``models.fsdp``), unless they are widened.

        Raises:
            AmpError: a tensor consists of other tensors, which only its class can cast.
        """
        protected = {id(tensor) for module in kept for _, _, tensor in _own_tensors(module)}
        for module in modules:
            for is_param, name, tensor in _own_tensors(module):
                if id(tensor) in protected:
                    dtype = self.high if tensor_lists.is_narrower(tensor, self.high) else None
                else:
                    dtype = None if tensor_lists.is_shard(tensor) else self.dtype
                if dtype is None or not tensor.is_floating_point():
                    continue
                before = self._dtypes.setdefault(id(tensor), tensor.dtype)
                self._tensors_of(module).append((is_param, name, before))
                if tensor.dtype is not dtype:
                    _check_castable(name, tensor, module, dtype)
                    self.originals[id(tensor)] = data_of(tensor), tensor.grad
                    _set_data(tensor, dtype, *self.originals[id(tensor)])
                if not is_param and tensor_lists.is_narrower(tensor, before):
                    self._wide_buffers_of(module).keep(name, self.originals[id(tensor)][0], dtype)
            if module in self._before and isinstance(module, torch.nn.RNNBase):
                module.flatten_parameters()

    def _tensors_of(self, module):
        if module not in self._before:
            self._before[module] = before = [], []
            self._patches.defer_for(module, _restore_dtypes, weakref.ref(module), *before, self.originals)
        return self._before[module][0]

    def _wide_buffers_of(self, module):
        if WIDE_BUFFERS not in vars(module):
            self._patches.set_in_dict(module, WIDE_BUFFERS, WideBuffers(module._buffers))
        self._before[module][1][:] = [vars(module)[WIDE_BUFFERS]]
        return vars(module)[WIDE_BUFFERS]

    def __del__(self):
        self.originals.clear()


def _check_castable(name, tensor, module, dtype):
    """Raise if a tensor has no memory of its own: quantized weights consist of integers and scales, for one."""
    is_plain = emulated_half_arithmetic.is_plain(type(tensor)) or tensor_lists.is_shard(tensor)
    if not is_plain and _has_own_operations(type(tensor)) and tensor.numel() and not _has_memory(tensor):
        raise AmpError(
            f"{name} of a {type(module).__name__} is of the class {type(tensor).__name__}, which keeps its values in "
            f"other tensors, so it cannot be cast to {dtype}. Use O1 or O4, which leave weights as they are, or name "
            "its layer in keep_fp32."
        )


def _has_own_operations(kind):
    """Return whether a class replaces torch's operations, as one that keeps its values elsewhere must."""
    name = "__torch_dispatch__"  # since torch 1.11
    return getattr(kind, name, None) is not getattr(torch.Tensor, name, None)


def _has_memory(tensor):
    """Return whether a tensor has an address; on some devices (xla) none has."""
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # torch 2.13: a tensor without memory
        return False


def _restore_dtypes(reference, tensors, wide_buffers, originals):
    module = reference()
    for is_param, name, dtype in tensors:
        owned = module._parameters if is_param else module._buffers
        tensor = owned[name] if name in owned else None  # those of a TorchScript module have no ``get``
        if tensor is not None and (tensor.dtype is not dtype or id(tensor) in originals):
            if id(tensor) not in originals:
                wide = None if is_param or not wide_buffers else wide_buffers[0].widened(name, data_of(tensor))
                originals[id(tensor)] = data_of(tensor) if wide is None else wide, stored_gradient(tensor)
            _set_data(tensor, dtype, *originals[id(tensor)])
            del originals[id(tensor)]


def _set_data(tensor, dtype, data, grad):
    set_stored_gradient(tensor, None)  # torch rejects data of another dtype than the gradient's
    set_data(tensor, data.to(dtype))
    if grad is not None:
        set_stored_gradient(tensor, grad.to(dtype))


def _own_tensors(module):
    """Return (whether it is a param, its name, the tensor) for the module's own params and buffers."""
    owned = [(True, name, tensor) for name, tensor in module._parameters.items()]
    owned += [(False, name, tensor) for name, tensor in module._buffers.items()]
    return [each for each in owned if each[2] is not None]


def half_dtypes(models):
    """Return the dtypes of models' params that are narrower than float32, in their order, as a list."""
    params = [param for model in models for param in model.parameters()]
    return list(dict.fromkeys(each.dtype for each in params if tensor_lists.is_narrower(each, torch.float32)))
