"""Statistics of tensors that stay on their devices until they are read: largest values, shares, named scalars.

For the largest value, one number per tensor is enough: in ``abs().max()``, nan takes precedence over inf, and inf over
finite values.
"""

import math

import torch

from ..support.tensor_lists import as_real
from ..support.torch_compat.thread_blocks import grad_enabled


def low_dtype(policy):
    """Return the dtype that a level computes in where possible: the half one, or the high one if it casts nothing."""
    return policy.dtypes.low if policy.patch_torch_functions or policy.casts_model else policy.dtypes.high


def dense_values(tensor):
    """Return a tensor's floating-point values, detached: a DTensor's local shard, a sparse tensor's values.

    Returns:
        None if there are no values: for other dtypes and layouts, empty and nested tensors, and the meta device.
    """
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_sparse:
        tensor = tensor.coalesce()._values()
    tensor = as_real(tensor)
    if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.layout is not torch.strided:
        return None
    if getattr(tensor, "is_nested", False) or tensor.device.type == "meta":
        return None
    return tensor.detach()


def max_abs(tensor):
    """Return a tensor's largest absolute value, of shape (); nan if one is nan; None without floating-point values."""
    # An interrupt as the inner block ends is undone by the outer one.
    with grad_enabled(torch.is_grad_enabled()), grad_enabled(False):
        values = dense_values(tensor)
        return None if values is None else values.abs().max()


#: The statistics computed by ``summary``, in order.
SUMMARY = ("max_abs", "mean_abs", "zeros", "subnormal", "nonfinite")


def summary(tensor, dtype, scale=1.0):
    """Return statistics of a tensor's values in a dtype, with shape (5,), in float32 or float64, on its device.

    The largest and the mean absolute value of the finite values; and the shares of all values that are 0, subnormal,
    and inf or nan after they are multiplied by ``scale`` and cast to ``dtype``.

    Args:
        tensor: any tensor.
        dtype: a floating-point dtype.
        scale: a float, or a tensor of shape ().

    Returns:
        None if there are no floating-point values.
    """
    with grad_enabled(torch.is_grad_enabled()), grad_enabled(False):
        values = dense_values(tensor)
        if values is None:
            return None
        values = values.to(torch.float64 if values.dtype is torch.float64 else torch.float32).abs()
        finite = values - values == 0
        values = torch.where(finite, values, torch.zeros_like(values))
        held = (
            (values * (scale.to(values.device) if isinstance(scale, torch.Tensor) else scale))
            .to(dtype)
            .to(values.dtype)
        )
        is_held = finite & (held - held == 0)
        count = finite.sum().to(values.dtype).clamp(min=1)
        found = [values.max(), (values / count).sum()]
        for counted in ((held == 0) & finite, (held > 0) & (held < torch.finfo(dtype).tiny), ~is_held):
            found.append(counted.sum().to(values.dtype) / values.numel())
        return torch.stack(found)


def named_maxima(named):
    """Return (name, ``max_abs``) for (name, tensor) pairs, without tensors that have no floating-point values."""
    maxima = [(name, max_abs(tensor)) for name, tensor in named]
    return [(name, value) for name, value in maxima if value is not None]


def nonfinite_kind(value):
    """Return "nan", "inf" or None for a number."""
    return "nan" if math.isnan(value) else "inf" if math.isinf(value) else None


class NamedScalars:
    """Named scalars, in order, which stay on their devices until ``read``.

    Args:
        named: (name, tensor of shape ()) pairs.
        dtype: the dtype to store them in; None keeps their own.
        divisor: a float, or a tensor of shape (), that they are divided by.
    """

    def __init__(self, named, dtype=None, divisor=1.0):
        self.names = [name for name, _ in named]
        self.vectors = []  # (positions, vector) per device and dtype
        groups = {}
        for position, (_, value) in enumerate(named):
            positions, values = groups.setdefault((value.device, value.dtype), ([], []))
            positions.append(position)
            values.append(value)
        for positions, values in groups.values():
            vector = torch.stack(values)
            vector = vector if dtype is None else vector.to(dtype)
            by = divisor.to(vector.device, vector.dtype) if isinstance(divisor, torch.Tensor) else divisor
            self.vectors.append((positions, vector / by))

    def read(self):
        """Return (name, float) pairs in order; waits for the devices."""
        values = [0.0] * len(self.names)
        for positions, vector in self.vectors:
            for position, value in zip(positions, vector.tolist()):
                values[position] = value
        return list(zip(self.names, values))

    def nonfinite_counts(self):
        """Return a list of tensors of shape (), one per device, with the number of values that are inf or nan."""
        return [(vector - vector != 0).to(torch.float32).sum() for _, vector in self.vectors]


def read_together(tensors):
    """Return a list of numbers per tensor, with one copy to the host per device and dtype; waits for the devices."""
    places, groups, lengths = [], {}, {}  # ((device, dtype), start, end) per tensor
    for tensor in tensors:
        key = tensor.device, tensor.dtype
        start = lengths.get(key, 0)
        lengths[key] = start + tensor.numel()
        places.append((key, start, lengths[key]))
        groups.setdefault(key, []).append(tensor.reshape(-1))
    numbers = {key: torch.cat(vectors).tolist() for key, vectors in groups.items()}
    return [numbers[key][start:end] for key, start, end in places]
