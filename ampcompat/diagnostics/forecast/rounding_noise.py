"""The noise from rounding in one recorded step at a level; see ``reduction`` in the package's docstring."""

import math
from typing import NamedTuple, Optional

import torch

from ...engine.op_table.function_properties import having
from .range_faults import Fault, plain

#: The root mean square of a rounding error relative to the value, and the dtype's smallest subnormal.
ROUNDING = {torch.float16: 2.0**-12, torch.bfloat16: 2.0**-9}
SUBNORMAL = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}

_NORMS, _DIFFERENCES = having("is_norm"), having("is_difference")
#: Losses, and the power of each that gives the root mean square of the difference.
_LOSSES = {"mse_loss": 0.5, "l1_loss": 1.0, "smooth_l1_loss": 1.0, "huber_loss": 1.0}
_OF_ABSOLUTE_ERROR = having("is_relative_to_input")


class Noise(NamedTuple):
    """The effect of rounding on a value: root mean squares of the noise and of the value.

    ``power``: for a loss, the power of the loss that gives this size; otherwise None.
    """

    fault: Fault
    noise: float
    size: float
    power: Optional[float]


class StepNoise:
    """The noise of one recorded step.

    Args:
        step: its ``StepFaults``.
    """

    def __init__(self, step):
        self._step = step

    def found(self):
        """Return the ``Noise`` of differences, norms and softmaxes; its fault is at the origin of the noise."""
        low = self._step.level.low
        if low is None:
            return []
        noise, source, found = {}, {}, []
        for value in self._step.record.values:
            call = None if value.call is None else self._step.record.calls[value.call]
            inputs = [] if call is None else self._noise_of_inputs(call, noise)
            own = self._noise_after(call, inputs, value.index) if inputs else 0.0
            source[value.index] = self._source(call, inputs, source) if inputs else None
            is_loss = value.index in self._step.losses
            if inputs and self._amplifies(call) and source[value.index] and self._step.matters(value.index):
                size = self._step.values[value.index].rms ** _LOSSES.get(plain(call.op), 1.0)
                fault = Fault(*source[value.index], "reduction", 0.0)
                found.append(Noise(fault, own * size, size, _LOSSES.get(plain(call.op)) if is_loss else None))
            if self._step.dtypes.stored[value.index] is low:
                rounding = self._rounding(value.index)
                if 4 * rounding >= own:  # the last one of several of equal size
                    source[value.index] = self._step.origin(value.index)
                own = math.hypot(own, rounding)
            noise[value.index] = own
        return found

    @staticmethod
    def _amplifies(call):
        name = plain(call.op)
        return name in _NORMS or name in _DIFFERENCES or name in _OF_ABSOLUTE_ERROR

    def _source(self, call, inputs, source):
        """Return (place, function) of the rounding that contributes most to the noise of a call's inputs."""
        sizes = [self._step.values[index].rms if index in self._step.values else 0.0 for index in call.inputs]
        if plain(call.op) not in _DIFFERENCES:
            sizes = [1.0] * len(inputs)
        largest = max(range(len(inputs)), key=lambda place: inputs[place] * sizes[place])
        if not inputs[largest]:
            return None
        return source.get(call.inputs[largest]) or (call.place, call.op)

    def _noise_of_inputs(self, call, noise):
        low, found = self._step.level.low, []
        for index, dtype in zip(call.inputs, self._step.dtypes.seen[call.index]):
            is_cast = dtype is low and self._step.dtypes.stored[index] is not low or index in self._step.dtypes.rounded
            found.append(math.hypot(noise[index], self._rounding(index)) if is_cast else noise[index])
        return found

    def _rounding(self, index):
        low, stats = self._step.level.low, self._step.values.get(index)
        is_exact = stats is not None and stats.minimum == stats.maximum in (0.0, 1.0)
        if stats is None or is_exact or not stats.rms or not math.isfinite(stats.rms):
            return 0.0
        return max(ROUNDING[low], min(1.0, SUBNORMAL[low] / 4 / stats.rms))

    def _noise_after(self, call, inputs, index):
        name = plain(call.op)
        stats = [self._step.values.get(each) for each in call.inputs]
        own = self._step.values.get(index)
        if name in _DIFFERENCES and None not in stats and own is not None:
            size = own.rms ** _LOSSES.get(name, 1.0)
            absolute = math.sqrt(sum((noise * each.rms) ** 2 for noise, each in zip(inputs, stats)))
            return absolute / size if size and math.isfinite(absolute) else max(inputs)
        if name in _NORMS and call.inputs[0] in self._step.details:
            return inputs[0] / math.sqrt(max(self._step.details[call.inputs[0]].rms, 1e-12))
        if name in _OF_ABSOLUTE_ERROR and stats[0] is not None and math.isfinite(stats[0].rms):
            gap = self._step.details.get(call.inputs[0])
            # A masked logit of -1e9 does not contribute. If one logit is by far the largest, only noise of that size
            # matters.
            return inputs[0] * abs(stats[0].maximum) / max(1.0, 0.0 if gap is None else gap.rms)
        return max(inputs)


def noisy(found, losses, limit):
    """Return the faults of values that rounding changes too much.

    The squares of the noise in the last step are compared with those of the value there, or with 5 % of their median,
    whichever is larger, as in ``ab`` if a loss has almost vanished.

    Args:
        found: the result of ``StepNoise.found`` for each step.
        losses: of all steps.
        limit: the share above which it is too much.
    """
    last, squares = {}, {}
    for step in found:
        for each in step:
            squares.setdefault(each.fault.key, []).append(each.size**2)
            last[each.fault.key] = each
    faults = []
    for key, each in last.items():
        sizes = squares[key] if each.power is None else [abs(loss) ** (2 * each.power) for loss in losses]
        share = each.noise**2 / (max(each.size**2, 0.05 * sorted(sizes)[len(sizes) // 2]) or 1.0)
        if share >= limit:
            faults.append(each.fault._replace(margin=math.log2(share / limit) / 2))
    return faults
