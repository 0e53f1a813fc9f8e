"""How large the values in tensors are, found without waiting for the device.

Owns: ``largest`` (one number per tensor), ``Reading`` (many of them, unread), ``Peaks`` (the largest so far, by name).
Must not touch: the tensors that it looks at, and their graph.
The surprise: nan wins every comparison here, inf all others, so one number per tensor says both how large its values
were and what was wrong with them.
"""

import math

import torch

#: Sequences of names whose places in a vector are remembered; a network whose graph changes has more than one.
SEQUENCES = 64


def largest(tensor):
    """Return the largest magnitude in a tensor, of shape (): nan if one is nan. None where there is nothing to see."""
    if hasattr(tensor, "to_local"):  # a shard: each rank looks at its own
        tensor = tensor.to_local()
    if tensor.is_sparse:
        tensor = tensor.coalesce()._values()
    if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.layout is not torch.strided:
        return None
    if getattr(tensor, "is_nested", False) or tensor.device.type == "meta":
        return None
    with torch.no_grad():
        return tensor.detach().abs().max()


def what_is_wrong(value):
    """Return "nan", "inf" or None for a number."""
    return "nan" if math.isnan(value) else "inf" if math.isinf(value) else None


class Reading:
    """Magnitudes by name, in an order, on their devices until somebody asks.

    Args:
        named: (name, tensor of shape ()) pairs.
        dtype: in which they are kept; None leaves them as they are.
        divisor: a float, or a tensor of shape (), that they are divided by.
    """

    def __init__(self, named, dtype=None, divisor=1.0):
        self.names = [name for name, _ in named]
        self.columns = []  # (positions, vector) per device and dtype
        groups = {}
        for position, (_, value) in enumerate(named):
            positions, values = groups.setdefault((value.device, value.dtype), ([], []))
            positions.append(position)
            values.append(value)
        for positions, values in groups.values():
            vector = torch.stack(values)
            vector = vector if dtype is None else vector.to(dtype)
            by = divisor.to(vector.device, vector.dtype) if isinstance(divisor, torch.Tensor) else divisor
            self.columns.append((positions, vector / by))

    def read(self):
        """Return (name, float) pairs in their order; waits for the device."""
        values = [0.0] * len(self.names)
        for positions, vector in self.columns:
            for position, value in zip(positions, vector.tolist()):
                values[position] = value
        return list(zip(self.names, values))

    def non_finite(self):
        """Return a list of tensors of shape (), one per device: not 0 if anything is inf or nan there."""
        return [(vector - vector != 0).to(torch.float32).sum() for _, vector in self.columns]


class Peaks:
    """The largest finite magnitude so far by name; what is inf or nan leaves it as it is."""

    def __init__(self):
        self._slots = {}  # (device, name) -> index into that device's vector
        self._vectors = {}  # device -> vector, never changed in place; -1 where nothing was seen
        self._places = {}  # (device, names) -> [(positions or None, slots)]

    def take_in(self, reading):
        """Raise the peaks by a ``Reading``, on the device."""
        for positions, vector in reading.columns:
            names = tuple(reading.names[position] for position in positions)
            places = self._places_of(names, vector.device)
            peaks = self._grown(vector)
            for chosen, slots in places:
                values = vector if chosen is None else vector[chosen]
                before = peaks[slots]
                peaks = peaks.clone()
                peaks[slots] = torch.max(before, torch.where(values - values == 0, values, before))
            self._vectors[vector.device] = peaks

    def so_far(self):
        """Return a function: name -> the largest magnitude up to now as a float, or None; waits for the device."""
        vectors = dict(self._vectors)

        def peak(name):
            found = []
            for device, vector in vectors.items():
                slot = self._slots.get((device, name))
                if slot is not None and slot < len(vector):
                    found.append(vector[slot].item())
            return max(found) if found and max(found) >= 0.0 else None

        return peak

    def _places_of(self, names, device):
        """Return where a sequence of names goes: rounds without a name twice, since each writes its slots once."""
        key = (device, names)
        if key not in self._places:
            if len(self._places) >= SEQUENCES:
                self._places.clear()
            rounds, seen = [], {}
            for position, name in enumerate(names):
                number = seen[name] = seen.get(name, -1) + 1
                if number == len(rounds):
                    rounds.append(([], []))
                rounds[number][0].append(position)
                rounds[number][1].append(self._slots.setdefault((device, name), self._count(device)))
            self._places[key] = [
                (None if len(rounds) == 1 else torch.tensor(chosen, device=device), torch.tensor(slots, device=device))
                for chosen, slots in rounds
            ]
        return self._places[key]

    def _count(self, device):
        return sum(1 for known, _ in self._slots if known == device)

    def _grown(self, like):
        """Return the vector of a device, with room for every name that it has by now."""
        vector = self._vectors.get(like.device)
        missing = self._count(like.device) - (0 if vector is None else len(vector))
        if missing:
            room = torch.full((missing,), -1.0, dtype=like.dtype, device=like.device)
            vector = room if vector is None else torch.cat([vector, room])
        return vector
