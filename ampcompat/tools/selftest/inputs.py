"""The arguments of one call of a function of the op table, on a device."""

import torch

#: The kinds of inputs: all low dtype, all high dtype, both alternating.
KINDS = ("low", "high", "mixed")


class Device:
    """A device on which forms are called.

    Args:
        name: "cpu", "cuda", …
    """

    #: Whether its tensors have values to compare.
    has_values = True

    def __init__(self, name="cpu"):
        self.name = name

    def put(self, tensor, requires_grad=False):
        """Return a CPU tensor as a new leaf on this device."""
        return tensor.detach().to(self.name).requires_grad_(requires_grad)

    def call(self, function, args, kwargs):
        """Call a function on arguments on this device."""
        return function(*args, **kwargs)


CPU = Device()


class Inputs:
    """The arguments of one call.

    Args:
        case: a ``sample_arguments.Case``.
        kind: one of ``KINDS``.
        pair: the ``DtypePair``.
        device: the device of the tensors.
    """

    def __init__(self, case, kind, pair, device=CPU):
        dtypes = {"low": [pair.low], "high": [pair.high], "mixed": [pair.high, pair.low]}[kind]
        self.device = device
        self.sources = []  # the floating inputs on the CPU
        self.leaves = []

        def put(tensor):
            if not tensor.is_floating_point():
                return device.put(tensor)
            self.sources.append(tensor.to(dtypes[len(self.sources) % len(dtypes)]).detach())
            self.leaves.append(device.put(self.sources[-1], case.differentiable))
            return self.leaves[-1]

        self._made = (tuple(case.make()), dict(case.kwargs))
        self.args, self.kwargs = mapped(put, self._made)

    def exact(self):
        """Return the same values as float64 leaves on the CPU."""
        twin = object.__new__(Inputs)
        twin.device, twin.leaves, sources = CPU, [], iter(self.sources)

        def put(tensor):
            if not tensor.is_floating_point():
                return tensor
            source = next(sources)
            twin.leaves.append(source.double().requires_grad_(self.leaves[len(twin.leaves)].requires_grad))
            return twin.leaves[-1]

        twin.args, twin.kwargs = mapped(put, self._made)
        return twin


def mapped(function, value):
    """Apply a function to the tensors of nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(function, item) for item in value])
    return value
