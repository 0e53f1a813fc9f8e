"""The faults of one recorded step at a level; see the formulas in the package's docstring."""

import math
from typing import NamedTuple

import torch

from ...engine.op_table.cast_rules import HALF
from ...engine.op_table.function_properties import PROPERTIES, FunctionProperties, having
from ...observers.places import OpPlace
from .level_dtypes import StepDtypes

#: The smallest number that float16 rounds to inf, and its largest finite number; the exponent below which it rounds to
#: 0.
TO_INF, LARGEST, TO_ZERO = 65520.0, 65504.0, -25

#: The share of the loss, to first order, below which it does not matter that a value becomes 0.
SIGNIFICANT = 0.01

_BOUNDED, _REMOVES_NAN = having("is_bounded"), having("removes_nan")
_BOUNDED_BELOW, _KEEPS_SIGN, _REDUCTIONS = having("is_bounded_below"), having("keeps_sign"), having("is_reduction")


class Fault(NamedTuple):
    """One fault: its place, its kind, and by how many powers of two the limit is exceeded (margin)."""

    place: OpPlace
    op: str
    kind: str
    margin: float

    @property
    def key(self):
        """The key of equal faults: everything except the margin."""
        return self.place, self.op, self.kind


def plain(op):
    """Return the name of a function without the underscores of operators and in-place forms."""
    name = op.strip("_")
    return name[1:] if op.startswith("__i") and name != "invert" else name


def _sides(name, call, position, side):
    """Return the signs that an inf may have after a call."""
    if not side or name in _KEEPS_SIGN or name in _BOUNDED:
        return (side,)
    if name in ("sub", "rsub", "subtract"):
        return (side if (position == 0) == (name != "rsub") else -side,)
    if name in ("mul", "div", "truediv", "multiply") and len(call.inputs) == 1 and call.scalars:
        return (side if call.scalars[0] > 0 else -side,)
    return (1, -1)


class StepFaults:
    """The faults of one recorded step at a level.

    Args:
        sampled: the ``forecast_observer.Sampled``, whose fields are attributes of the same names here.
        level: the ``LevelDtypes``.

    Attributes:
        dtypes: the ``StepDtypes``.
        losses: the indices of the values that are losses.
    """

    def __init__(self, sampled, level):
        self.level, self.record = level, sampled.record
        self.values, self.gradients, self.details = sampled.values, sampled.gradients, sampled.details
        self.dtypes = StepDtypes(sampled.record, level)
        self._consumers = [[] for _ in sampled.record.values]  # for each value: (call, position of the input)
        for call in sampled.record.calls:
            for position, index in enumerate(call.inputs):
                self._consumers[index].append((call, position))
        self.losses = frozenset(sampled.record.losses)
        self._reached = {}
        sizes = [self.values[index].rms for index in self.losses if index in self.values]
        self._loss = max(sizes, default=0.0)

    # -- where a value is half -----------------------------------------------------------------------------------------

    def _low_consumers(self, index):
        """Return the (call, position) pairs that get a value in the low dtype."""
        return [(c, p) for c, p in self._consumers[index] if self.dtypes.seen[c.index][p] is self.level.low]

    def is_low(self, index):
        """Return whether a value, or the cast of it that a function gets, has the low dtype."""
        stored = self.dtypes.stored[index]
        return stored is self.level.low or index in self.dtypes.rounded or bool(self._low_consumers(index))

    def origin(self, index):
        """Return (place, function) of a low value: the one that created it, or that gets it through a cast."""
        value = self.record.values[index]
        if self.dtypes.stored[index] is self.level.low and value.call is not None:
            return value.place, self.record.calls[value.call].op
        for call, _ in self._low_consumers(index) or self._consumers[index]:
            return call.place, call.op
        return value.place, value.kind

    def _inputs_of(self, index):
        call = self.record.values[index].call
        return () if call is None else self.record.calls[call].inputs

    # -- does it reach the loss? ---------------------------------------------------------------------------------------

    def _reaches_loss(self, index, side):
        """Return whether inf with a sign (+1, -1), or nan (0), in a value makes the loss or gradients non-finite."""
        key = index, side
        if key not in self._reached:
            self._reached[key] = False  # during the search
            self._reached[key] = index in self.losses or any(
                self._passes_on(call, position, side) for call, position in self._consumers[index]
            )
        return self._reached[key]

    def _passes_on(self, call, position, side):
        name = plain(call.op)
        if name in _BOUNDED_BELOW and side < 0:
            return False
        for index in call.outputs:
            stats = self.values.get(index)
            if stats is None:
                continue
            for each in (0,) if self.level.table.get(call.op) == HALF else _sides(name, call, position, side):
                is_in_range = (stats.maximum if each > 0 else -stats.minimum) < TO_INF
                is_bounded = name in (_BOUNDED if each else _REMOVES_NAN) and is_in_range
                if not is_bounded and self._reaches_loss(index, each):
                    return True
        return False

    # -- the forward pass ----------------------------------------------------------------------------------------------

    def range_faults(self):
        """Return the faults of values beyond float16's range, or rounded to 0 in it."""
        if self.level.low is not torch.float16:
            return []
        return self._overflows() + self._squares() + self._zero_denominators() + self._flushes()

    def _overflows(self):
        """Return the faults of values beyond float16's range that reach the loss, without consequential ones."""
        beyond, found = set(), []
        for index in sorted(self.values):
            stats = self.values[index]
            sides = [side for side, end in ((1, stats.maximum), (-1, -stats.minimum)) if TO_INF <= end < math.inf]
            if not sides or not self.is_low(index):
                continue
            beyond.add(index)
            if beyond.intersection(self._inputs_of(index)) or not any(self._escapes(index, each) for each in sides):
                continue
            place, op = self.origin(index)
            largest = max(abs(end) for end in (stats.maximum, stats.minimum) if math.isfinite(end))
            kind = "reduction" if plain(op) in _REDUCTIONS else "overflow"
            found.append(Fault(place, op, kind, math.log2(largest / LARGEST)))
        return found

    def _escapes(self, index, side):
        if self.dtypes.stored[index] is self.level.low or index in self.dtypes.rounded:
            return self._reaches_loss(index, side)
        return any(self._passes_on(call, position, side) for call, position in self._low_consumers(index))

    def _squares(self):
        """Return the faults of a mean of squares in half, whose squares are in half too."""
        found = []
        for call in self.record.calls:
            low = [index for index, dtype in zip(call.inputs, self.dtypes.seen[call.index]) if dtype is torch.float16]
            if plain(call.op) != "mse_loss" or self.dtypes.stored[call.outputs[0]] is not torch.float16 or not low:
                continue
            largest = sum(self.values[index].largest for index in call.inputs if index in self.values) ** 2
            mean = self.values.get(call.outputs[0])
            # The largest square is at most the sum of both maxima, squared, and at least the mean.
            if mean is not None and mean.largest < TO_INF <= largest and mean.largest > TO_INF / 16:
                found.append(Fault(call.place, call.op, "reduction", math.log2(largest / LARGEST)))
        return found

    def _zero_denominators(self):
        """Return the faults of inputs of singular functions that are not 0 in float32 but 0 in float16."""
        found = []
        for call in self.record.calls:
            position = PROPERTIES.get(plain(call.op), FunctionProperties()).singular_input
            if position is None and plain(call.op) == "pow" and call.scalars and call.scalars[0] < 1:
                position = 0
            position = 0 if position is not None and len(call.inputs) == 1 and call.scalars else position
            if position is None or position >= len(call.inputs):
                continue
            if not any(self._reaches_loss(index, side) for index in call.outputs for side in (1, -1)):
                continue
            index = call.inputs[position]
            stats = self.values.get(index)
            if stats is None or not self._is_half_at(call, position) or stats.zeros or stats.smallest >= 2.0**TO_ZERO:
                continue
            if plain(call.op) == "sqrt" and self._is_masked(index):
                continue
            eps = self._epsilon(index)
            beyond = 2.0**TO_ZERO / (eps or stats.smallest)
            found.append(Fault(call.place, call.op, "epsilon" if eps else "underflow", math.log2(beyond)))
        return found

    def _is_half_at(self, call, position):
        stored = self.dtypes.stored[call.inputs[position]]
        return stored is torch.float16 or self.dtypes.seen[call.index][position] is torch.float16

    def _is_masked(self, index, depth=4):
        """Return whether gradients are dropped where a value is 0, so that an infinite derivative is harmless."""
        call = self.record.values[index].call
        if call is None or not depth:
            return False
        call = self.record.calls[call]
        name = plain(call.op)
        if name in ("relu", "where", "masked_fill", "clamp", "clamp_min", "threshold"):
            return True
        is_of_one = len(call.inputs) == 1 and name in ("add", "mul", "div", "float", "half", "to")
        return is_of_one and self._is_masked(call.inputs[0], depth - 1)

    def _epsilon(self, index, depth=4):
        """Return the small number that was added to a value, or limits it, a few calls before; or None."""
        call = self.record.values[index].call
        if call is None or not depth:
            return None
        call = self.record.calls[call]
        if plain(call.op) in ("add", "clamp", "clamp_min", "clip", "maximum", "radd"):
            found = [number for number in call.scalars if 0 < number < 2.0**TO_ZERO]
            return max(found, default=None)
        return next((eps for eps in (self._epsilon(each, depth - 1) for each in call.inputs) if eps), None)

    def _flushes(self):
        """Return the faults of values that affect the loss and mostly, weighted by squares, become 0 in float16."""
        gone, found = set(), []
        for index in sorted(self.values):
            stats = self.values[index]
            if not self.is_low(index) or not stats.nonzero or stats.share_below(TO_ZERO, 2) < 0.5:
                continue
            gone.add(index)
            if gone.intersection(self._inputs_of(index)) or not self.matters(index):
                continue
            place, op = self.origin(index)
            found.append(Fault(place, op, "underflow", math.log2(2.0**TO_ZERO / stats.rms)))
        return found

    def matters(self, index):
        """Return whether the loss may change by a share of ``SIGNIFICANT`` if a value becomes 0."""
        gradient, stats = self.gradients.get(index), self.values.get(index)
        if gradient is None or stats is None or not self._loss:
            return False
        return gradient.rms * stats.rms * stats.size >= SIGNIFICANT * self._loss

    # -- the backward pass ---------------------------------------------------------------------------------------------

    def largest_gradient(self):
        """Return (largest absolute half gradient, the index of its value), unscaled; or (0.0, None)."""
        found = [(stats.largest, index) for index, stats in self.gradients.items() if self.is_low(index)]
        return max([each for each in found if math.isfinite(each[0])], default=(0.0, None))

    def gradient_overflow(self, limit, margin):
        """Return the fault of the first gradient beyond ``limit`` in the backward pass.

        It is attributed to the function whose backward pass computes it or, if it is float32, to the producer of the
        value.
        """
        beyond = [i for i, stats in self.gradients.items() if self.is_low(i) and stats.largest > limit]
        index = max(beyond)
        for call, _ in self._consumers[index]:
            if call.place.layer_of(self.level.kept) is None:
                return Fault(call.place, call.op, "overflow", margin)
        return Fault(*self.origin(index), "overflow", margin)

    def survival(self, scale, power):
        """Return ``{(model, name of a param): share of its gradient that does not become 0 on the way}``, and faults.

        Args:
            scale: the loss scale.
            power: 2 to weight gradients by their squares, as in a plain SGD step; 1 for steps like Adam's.
        """
        shares, params, found = {}, {}, []
        limit = TO_ZERO - math.log2(scale)
        for value in reversed(self.record.values):
            after = [shares[i] for c, _ in self._consumers[value.index] for i in c.outputs if i in self.gradients]
            share, stats = max(after, default=1.0), self.gradients.get(value.index)
            if stats is not None and stats.nonzero and self.level.low is torch.float16 and self.is_low(value.index):
                own = stats.share_below(limit, power)
                if own >= 0.5 and share >= 0.5:
                    margin = math.log2(2.0**limit / stats.rms) if stats.rms else 0.0
                    found.append(Fault(*self.origin(value.index), "underflow", margin))
                share *= 1.0 - own
            shares[value.index] = share
            if value.kind == "param" and stats is not None:
                params[value.place.model, value.name] = share
        return params, found

    # -- distance from the limit of the range --------------------------------------------------------------------------

    def margins(self, scale):
        """Yield (module, ``ModuleMargin``) of each half value; None for those outside every model."""
        for index in filter(self.is_low, self.values):
            place, op = self.origin(index)
            values, gradients = self.values[index], self.gradients.get(index)
            largest = values.largest if math.isfinite(values.largest) else 0.0
            gradient = 0.0 if gradients is None or not math.isfinite(gradients.largest) else gradients.largest * scale
            lost = 0.0
            if gradients is not None and self.level.low is torch.float16:
                lost = gradients.share_below(TO_ZERO - math.log2(scale))
            yield place.name, ModuleMargin(op, largest, gradient, lost)


class ModuleMargin(NamedTuple):
    """The largest half value, the largest scaled half gradient, and the share of gradients that become 0.

    ``op``: the function whose result is nearest to the limit of the range.
    """

    op: str
    largest: float
    gradient: float
    lost: float


def largest_margins(steps, scale):
    """Return ``{module: ModuleMargin}`` of all half values of the ``StepFaults``."""
    by_module = {}
    for module, margin in (pair for step in steps for pair in step.margins(scale)):
        by_module.setdefault(module, []).append(margin)
    found = {}
    for module, margins in by_module.items():
        nearest = max(margins, key=lambda each: max(each.largest, each.gradient))
        found[module] = ModuleMargin(nearest.op, *[max(numbers) for numbers in list(zip(*margins))[1:]])
    return found
