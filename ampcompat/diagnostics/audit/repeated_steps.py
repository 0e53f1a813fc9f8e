"""Consecutive steps of an optimizer, repeated with float32 copies of its weights and state."""

import torch

from ...observers.optimizer_twin import OptimizerTwin
from ...support.tensor_lists import CHUNK, as_real

HALF = (torch.float16, torch.bfloat16)

#: Updates under this share of a unit in the last place are lost for certain where results are rounded to nearest: the
#: twin's update differs a little from that of an optimizer with half state.
_SURELY_LOST = 0.25


class RepeatedSteps:
    """Consecutive steps that are repeated with a twin.

    Args:
        optimizer: the original, before the first of the steps.
        params: its half params.
        is_new: whether the optimizer has never stepped.
    """

    def __init__(self, optimizer, params, is_new):
        self._twin = OptimizerTwin(optimizer, torch.float32)
        copies = dict(self._twin.pairs)
        self._chunks = [ParamChunk([(param, copies[param]) for param in chunk]) for chunk in chunks(params)]
        self._optimizer, self._copies = optimizer, copies
        self._counts = is_new  # the step

    def own_tensors(self):
        """Return the tensors of this object that may have a param's shape."""
        places = [each for chunk in self._chunks for each in chunk.own_tensors()]
        states = [each for each in self._twin.state.values() if isinstance(each, dict)]
        state = [value for each in states for value in each.values()]
        return places + state + list(self._copies.values())

    def before_step(self):
        """Note the weights, and step with the twin."""
        if self._counts:
            for chunk in self._chunks:
                chunk.before_step()
        self._twin.step()

    def after_step(self):
        """Count the updates that were lost; return whether the step counts."""
        counted, self._counts = self._counts, True
        if counted:
            for chunk in self._chunks:
                chunk.after_step()
        return counted

    def facts(self):
        """Yield ``((name, params), vector)``, an element per param: what to sum over the windows, or the zeros now."""
        for chunk in self._chunks:
            yield from chunk.facts()
        for params in chunks(self._copies):
            yield from self._zeros(params)

    def _zeros(self, params):
        pairs = {}  # name and kinds of tensors -> (param, half state, the twin's)
        for param in params:
            of_twin = self._twin.state.get(self._copies[param], {})
            for name, value in self._optimizer.state.get(param, {}).items():
                exact = of_twin.get(name)
                if is_half(value) and _is_dense(exact) and value.shape == exact.shape:
                    kinds = name, value.device, value.dtype, exact.device, exact.dtype
                    pairs.setdefault(kinds, []).append((param, value, exact))
        for (name, *_), alike in pairs.items():
            owners, halves, exacts = zip(*alike)
            yield from sums_by_param({"zero " + name: (flat(halves) == 0) & (flat(exacts) != 0)}, owners, halves)


class ParamChunk:
    """Params of one device and dtype, with their copies: what is done at each step takes all of them at once."""

    def __init__(self, pairs):
        self._params, self._copies = map(list, zip(*pairs))
        self._start = self._before = None  # (the weights, the copies): before the first step, before this one
        self._lost = self._meant = self._is_small = None

    def own_tensors(self):
        """Return the copies of params that this object keeps."""
        return [*(self._start or ()), *(self._before or ())]

    def before_step(self):
        """Note the weights."""
        self._before = concatenated(self._params), concatenated(self._copies)
        if self._start is None:
            self._start = self._before
            self._lost, self._meant = (torch.zeros_like(self._start[0], dtype=torch.uint8) for _ in range(2))
            self._is_small = torch.ones_like(self._lost, dtype=torch.bool)

    def after_step(self):
        """Count the updates that were lost."""
        (weight, copy), now, copy_now = self._before, flat(self._params), flat(self._copies)
        self._before = None
        update = (copy_now - copy).abs_()
        is_meant = update != 0
        self._meant += is_meant
        self._lost += is_meant & (now == weight)
        self._is_small &= update < _SURELY_LOST * unit_in_last_place(weight)

    def facts(self):
        """Yield ``((name, params), vector)``, an element per param."""
        if self._start is None:
            return
        now, copy = flat(self._params), flat(self._copies)
        moved = copy - self._start[1]
        is_far = self._is_small & (moved.abs() >= unit_in_last_place(self._start[0]) / 2)
        by_name = {
            "product": moved.double() * (now.double() - self._start[0].double()),
            "square": moved.double().square_(),
            "lost": self._lost,
            "meant": self._meant,
            "far": is_far,
            "far and moved": is_far & (now != self._start[0]),
        }
        yield from sums_by_param(by_name, self._params, self._params)


def chunks(params):
    """Return lists of params of one device and dtype, each with one param or about ``CHUNK`` elements."""
    found, sizes = {}, {}
    for param in params:
        key = param.device, param.dtype
        if key not in found or sizes[key] + param.numel() > CHUNK:
            found.setdefault(key, []).append([])
            sizes[key] = 0
        found[key][-1].append(param)
        sizes[key] += param.numel()
    return [chunk for alike in found.values() for chunk in alike]


def flat(tensors):
    """Return the local values of tensors of one device and dtype, one after another; of a single tensor as a view."""
    return local(tensors[0]).reshape(-1) if len(tensors) == 1 else concatenated(tensors)


def concatenated(tensors):
    """Return a copy of the local values of tensors of one device and dtype, one after another."""
    return torch.cat([local(each).reshape(-1) for each in tensors])


def sums_by_param(by_name, params, tensors):
    """Yield ``((name, params), vector)``: the sum over the part of each param's tensor, in float64.

    Args:
        by_name: ``{name: values}``, which are as ``flat(tensors)``.
    """
    sizes = [local(each).numel() for each in tensors]
    device = next(iter(by_name.values())).device
    if len(sizes) > 1:
        positions = torch.arange(len(sizes), device=device)
        positions = positions.repeat_interleave(torch.tensor(sizes, device=device), output_size=sum(sizes))
    for name, values in by_name.items():
        if len(sizes) > 1:
            sums = torch.zeros(len(sizes), dtype=torch.float64, device=device)
            sums.index_add_(0, positions, values.double())
        else:
            sums = values.sum(dtype=torch.float64).reshape(1)
        yield (name, tuple(params)), sums


def is_half(value):
    """Return whether a value is a dense half tensor."""
    return _is_dense(value) and value.dtype in HALF


def _is_dense(value):
    """Return whether a value is a tensor of numbers, sharded or not: quantized state is a class of its own."""
    return type(value) is torch.Tensor or hasattr(value, "to_local")


def local(tensor):
    """Return the values of a tensor that this process has."""
    return as_real(tensor.to_local() if hasattr(tensor, "to_local") else tensor)


def unit_in_last_place(half):
    """Return the distances between the values of a half tensor and the next ones away from zero, in float32."""
    bits, smallest = (10, 2.0**-24) if half.dtype is torch.float16 else (7, 2.0**-133)
    exponent_alone = (half.float().view(torch.int32) & 0x7F800000).view(torch.float32)
    return (exponent_alone * 2.0**-bits).clamp_(min=smallest)
