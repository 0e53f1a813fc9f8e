"""Masters that are stored between steps: a bfloat16 weight and 16 bits (``remainder_bits``) hold the float32 value.

A stored master is the same tensor object in ``param_groups`` and the same key of the optimizer's ``state``, without
memory. In a step the masters of one chunk (``remainder_chunk``) after another have their values. Whatever else reads
or writes a stored master gets its value too: it makes the chunk restore all of its masters, until the next step has
ended. Reading ``.grad`` restores no values.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from ...errors import AmpError
from ...support import tensor_lists
from ...support.tensor_lists import GRADIENT, set_stored_gradient, stored_gradient
from ...support.torch_compat import features
from ...support.torch_compat.thread_context import without_gradients
from . import remainder_bits

#: The first torch that reinterprets tensors as numbers of another size, and passes reads of attributes to subclasses.
OLDEST = "1.12"

#: What may be asked of a stored master without its value.
_OF_ATTRIBUTES = (
    "shape dtype device layout ndim requires_grad is_leaf grad_fn _version _base is_sparse is_cuda is_meta is_quantized"
)
_METHODS = "size stride dim numel nelement ndimension element_size is_floating_point is_complex get_device _is_view"
_METHODS += " is_contiguous untyped_storage __len__ __hash__ requires_grad_"


def _metadata():
    properties = [getattr(torch.Tensor, name) for name in _OF_ATTRIBUTES.split() if hasattr(torch.Tensor, name)]
    methods = [getattr(torch.Tensor, name) for name in _METHODS.split() if hasattr(torch.Tensor, name)]
    getters = [each.__get__ for each in properties] + [torch.Tensor.requires_grad.__set__]
    return frozenset(getters + methods + [GRADIENT.__get__, GRADIENT.__set__, GRADIENT.__delete__])


_METADATA = _metadata()


class StoredMaster(torch.Tensor):
    """The class of a master while it is stored."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Restore the masters among the arguments, except where only metadata are asked for."""
        kwargs = kwargs or {}
        if function not in _METADATA:
            for master in _stored_in([args, kwargs]):
                restore(master)
        with _without_torch_function():
            return function(*args, **kwargs)

    @property
    def grad(self):
        """The gradient, in float32."""
        _show_gradient(_place(self))
        return stored_gradient(self)

    @grad.setter
    def grad(self, gradient):
        _show_gradient(_place(self))
        set_stored_gradient(self, gradient)

    @grad.deleter
    def grad(self):
        self.grad = None


_names = [name for name in ("DisableTorchFunctionSubclass", "DisableTorchFunction") if hasattr(torch._C, name)]
_without_torch_function = getattr(torch._C, _names[0]) if _names else nullcontext


def _show_gradient(place):
    """Give a master the gradient that its half param shows, before a script reads or replaces the master's."""
    chunk = place.chunk()
    if chunk is not None:
        chunk.show_gradient_of(place.model())


def _stored_in(values):
    for value in values.values() if isinstance(values, dict) else values:
        if type(value) is StoredMaster:
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from _stored_in(value)


def value_of(master):
    """Return the value of a master, float32; of a stored one in new memory, and it stays stored."""
    return _place(master).value() if type(master) is StoredMaster else master.detach()


def restore(master):
    """Give a stored master its value, until the next step has ended; others have it."""
    if type(master) is StoredMaster:
        place = _place(master)
        chunk = place.chunk()
        if chunk is not None:
            chunk.restore()
        else:  # its optimizer is gone
            give_value(master, place.value())


def give_value(master, value):
    """Make a tensor the value of a master, which is no longer stored."""
    if type(master) is StoredMaster:
        master.__class__ = torch.Tensor
        del vars(master)["_amp_place"]
    tensor_lists.set_data(master, value)


class StoredValues:
    """What the weights of some masters lack.

    Args:
        remainders, ties: what ``remainder_bits.split`` has returned.
        layouts: (offset, shape, stride) of each master.
    """

    __slots__ = ("remainders", "ties", "layouts")

    def __init__(self, remainders, ties, layouts):
        self.remainders, self.ties, self.layouts = remainders, ties, layouts

    def value(self, index, model):
        """Return the float32 value of one master, in new memory; ``model`` is its half param."""
        offset, shape, stride = self.layouts[index]
        size, device = shape.numel(), self.remainders.device
        with without_gradients():
            weights = torch.empty_strided(shape, stride, dtype=torch.int16, device=device).copy_(bits_of(model))
            remainders = self.remainders[offset : offset + size]
            memory = remainder_bits.join(weights.as_strided((size,), (1,)), remainders, self.ties, offset)
            return memory.as_strided(shape, stride)


class StoredPlace(NamedTuple):
    """Where a stored master has its value. A master may outlive its optimizer, but not its half param.

    ``chunk`` and ``model`` are weak references: the session holds the masters of half params that are alive.
    """

    chunk: Any
    index: int
    stored: StoredValues
    model: Any

    def value(self):
        """Return the value of the master."""
        return self.stored.value(self.index, self.model())


def _place(master):
    return vars(master)["_amp_place"]


def check_policy(policy):
    """Raise if the masters of a ``Policy`` cannot be stored.

    Raises:
        AmpError: they are not float32 masters of bfloat16 weights, or this torch is too old.
    """
    if not (policy.master_weights and policy.cast_model_type is torch.bfloat16 and policy.dtypes.high is torch.float32):
        raise AmpError(
            f"store_param_remainders=True makes no sense with opt_level {policy.opt_level}: it stores what bfloat16 "
            "weights lack of their float32 master weights. Use O5, or leave it out."
        )
    if not features.is_version_within(oldest=OLDEST):
        raise AmpError(
            f"store_param_remainders=True needs torch {OLDEST} or later; this is torch {features.version()}."
        )


def bits_of(half):
    """Return the bit patterns of a bfloat16 tensor as int16; the memory is shared."""
    return half.detach().view(torch.int16)
