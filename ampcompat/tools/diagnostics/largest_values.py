"""The largest absolute values of tensors, which stay on their devices until they are read.

One number per tensor is enough: in ``abs().max()``, nan takes precedence over inf, and inf over finite values.
"""

import math

import torch

from ...support.tensor_lists import as_real

#: The number of name sequences with cached positions in a vector; a model with a changing graph has several.
SEQUENCES = 64


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
    with torch.no_grad():
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
    with torch.no_grad():
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


class RunningMax:
    """The largest finite value so far by name; inf and nan leave it unchanged."""

    def __init__(self):
        self._slots = {}  # device -> {name: index into that device's vector}
        self._vectors = {}  # device -> vector, never changed in place; -1 where there was no finite value
        self._positions = {}  # (device, names) -> [(positions or None, slots)]

    def update(self, scalars):
        """Update the maxima with ``NamedScalars``, on the device."""
        for positions, vector in scalars.vectors:
            names = tuple(scalars.names[position] for position in positions)
            rounds = self._rounds(names, vector.device)
            maxima = self._enlarged(vector)
            for chosen, slots in rounds:
                values = vector if chosen is None else vector[chosen]
                before = maxima[slots]
                maxima = maxima.clone()
                maxima[slots] = torch.max(before, torch.where(values - values == 0, values, before))
            self._vectors[vector.device] = maxima

    def snapshot(self):
        """Return a function: name -> the current maximum as a float, or None; it waits for the devices."""
        vectors = dict(self._vectors)

        def maximum(name):
            found = []
            for device, vector in vectors.items():
                slot = self._slots[device].get(name)
                if slot is not None and slot < len(vector):
                    found.append(vector[slot].item())
            return max(found) if found and max(found) >= 0.0 else None

        return maximum

    def _rounds(self, names, device):
        """Return the slots of names, in rounds without duplicates, since indexed writes must be unique."""
        key = (device, names)
        if key not in self._positions:
            if len(self._positions) >= SEQUENCES:
                self._positions.clear()
            rounds, seen, device_slots = [], {}, self._slots.setdefault(device, {})
            for position, name in enumerate(names):
                number = seen[name] = seen.get(name, -1) + 1
                if number == len(rounds):
                    rounds.append(([], []))
                rounds[number][0].append(position)
                rounds[number][1].append(device_slots.setdefault(name, len(device_slots)))
            self._positions[key] = [
                (None if len(rounds) == 1 else torch.tensor(chosen, device=device), torch.tensor(slots, device=device))
                for chosen, slots in rounds
            ]
        return self._positions[key]

    def _enlarged(self, like):
        """Return the vector of a device, enlarged for new names."""
        vector = self._vectors.get(like.device)
        missing = len(self._slots[like.device]) - (0 if vector is None else len(vector))
        if missing:
            new = torch.full((missing,), -1.0, dtype=like.dtype, device=like.device)
            vector = new if vector is None else torch.cat([vector, new])
        return vector
