"""Repeats recorded operations on other inputs: in their own dtypes, or in float32."""

import torch

from ...support.nested import BYTES, tensors_in
from .step_record import Ref

#: Operations with the argument ``half_to_float``, and its place.
_HALF_TO_FLOAT = {"aten._softmax.default": 2, "aten._log_softmax.default": 2}


def function_of(name):
    """Return the operation of this name, such as "aten.addmm.default"."""
    library, packet, overload = name.split(".", 2)
    return getattr(getattr(getattr(torch.ops, library), packet), overload)


def repeat(op, tensors, is_wide=False):
    """Return the results of an operation for other inputs, as a list of tensors.

    Args:
        op: the ``StepOp``.
        tensors: ``{index of a value: tensor}`` of its inputs. They are not changed.
        is_wide: half tensors are replaced by float32 ones, and the operation computes in float32.

    Raises:
        Exception: from the operation.
    """
    function = function_of(op.name)
    written = {each.name for each in function._schema.arguments if each.alias_info and each.alias_info.is_write}
    names = [each.name for each in function._schema.arguments]

    def filled(value, is_written):
        if isinstance(value, Ref):
            tensor = tensors[value.index]
            return tensor.clone() if is_written else tensor
        if isinstance(value, (tuple, list)):
            return type(value)([filled(each, is_written) for each in value])
        if is_wide and isinstance(value, torch.dtype) and value in BYTES:
            return torch.float32 if BYTES[value] < 4 else value
        return value

    is_norm = "batch_norm" in op.name  # some write to their running statistics, although not according to their schema
    args = [filled(value, is_norm or name in written) for name, value in zip(names, op.args)]
    kwargs = {name: filled(value, is_norm or name in written) for name, value in op.kwargs.items()}
    place = _HALF_TO_FLOAT.get(op.name)
    if is_wide and place is not None:
        args[place] = False
    return list(tensors_in(function(*args, **kwargs)))


def widened(tensor):
    """Return a half tensor in float32, and any other as it is."""
    return tensor.float() if is_half(tensor.dtype) else tensor


def is_half(dtype):
    """Return whether a dtype is a two-byte floating-point one."""
    return BYTES.get(dtype) == 2
