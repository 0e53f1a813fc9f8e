"""Predicts for each level whether it works, with which layers in float32, or not."""

import math
from typing import List, NamedTuple, Optional, Tuple

import torch

from ... import opt_levels
from ...engine.op_table.cast_rules import HALF
from ...engine.session import process_state
from ...observers.places import OpPlace
from .level_dtypes import LevelDtypes, StepDtypes, table
from .range_faults import LARGEST, TO_ZERO, Fault, StepFaults, largest_margins
from .rounding_noise import StepNoise, noisy

WORKS, KEEP_FP32, FAILS = "works", "keep_fp32", "fails"

#: The share of progress that may be lost, and the share by which the loss may then end higher. With layers in float32,
#: only a quarter of this, and of the noise, may be left, since a proposal should be right.
LOST_PROGRESS, LOSS_EXCESS = 0.4, 0.05

#: The largest ratio of the distances that half and float32 weights may move.
TOO_FAR = 4.0

#: The number of first steps within which a dynamic scale must settle, and the share of skipped steps above which
#: settling later is a fault, as for the verdicts of ``ab``.
LONGEST_SEARCH, SKIPPED_SHARE = 25, 0.1

#: The share of skipped steps that is too large, whenever they occur.
MANY_SKIPPED = 0.3

#: The ratio of the squares of rounding errors and of the values from which on they count.
NOISE = 0.5

#: Optimizers whose step does not depend on the size of the gradient: lost gradients count by their absolute value.
_NORMALIZING = ("Adam", "RMSprop", "Adagrad", "Adadelta", "Rprop", "LAMB", "NovoGrad", "Lion")

#: The share of matrix products that must still run in half with the proposed layers in float32.
LEFT_IN_HALF = 0.2

#: The number of rounds of the search for layers to keep in float32.
_ROUNDS = 12


class Prediction(NamedTuple):
    """The forecast of a level: ``kind`` is works, keep_fp32 or fails; ``kept``: the value for keep_fp32.

    ``outcome`` is that of the level as it is, and ``final`` that with the layers of ``kept`` in float32. ``zero_eps``:
    (class, eps) of an optimizer whose eps is 0 in half weights, a fault of no layer; None if none is.
    """

    level: LevelDtypes
    kind: str
    kept: Tuple[str, ...]
    outcome: "Outcome"
    final: "Outcome"
    zero_eps: Optional[Tuple[str, float]] = None


class Outcome(NamedTuple):
    """The results of a level with given layers in float32; ``error``: why it would raise an error, or "".

    ``safe_scale``: the largest power of two at which no half gradient overflows, None if no loss scale is needed.
    ``skips``: steps that a dynamic scale will skip at first. ``margins``: the result of ``largest_margins``.
    """

    faults: List[Fault]
    safe_scale: Optional[float]
    skips: int
    error: str
    margins: dict


def predict(observed):
    """Return a ``Prediction`` for each level, O0 to O5, in order."""
    return [_Forecast(observed, name).prediction() for name in opt_levels.OPT_LEVELS]


class _Forecast:
    def __init__(self, observed, name):
        self._observed = observed
        self._level = make_level(observed, name)
        self._power = 1 if any(kind in each.optimizer for each in observed.params for kind in _NORMALIZING) else 2

    def prediction(self):
        level = self._level
        if level.low is None:
            nothing = Outcome([], None, 0, "", {})
            return Prediction(level, WORKS, (), nothing, nothing)
        outcome = self._outcome(level)
        if not outcome.faults:
            return Prediction(level, WORKS, (), outcome, outcome)
        zero_eps = self._zero_eps(level)
        kept = None if zero_eps else self._search(outcome)
        if kept is not None:
            return Prediction(level, KEEP_FP32, kept, outcome, self._outcome(level._replace(kept=level.kept + kept)))
        return Prediction(level, FAILS, (), outcome, outcome, zero_eps)

    # -- one candidate -------------------------------------------------------------------------------------------------

    def _outcome(self, level):
        steps = [StepFaults(sampled, level) for sampled in self._observed.steps]
        error, faults = self._errors(steps)
        for step in steps:
            faults += step.range_faults()
        limit = NOISE if level.kept == self._level.kept else NOISE / 4
        faults += noisy([StepNoise(step).found() for step in steps], self._observed.losses, limit)
        safe, skips, scale, found = self._scale(steps, level)
        faults += found + self._lost(steps, level, scale)
        return Outcome(_merged(faults), safe, skips, error, largest_margins(steps, scale))

    @staticmethod
    def _errors(steps):
        """Return (why the first call that would raise an error does so, or ""; the faults)."""
        found = [step.dtypes.error for step in steps if step.dtypes.error is not None]
        faults = [Fault(call.place, call.op, "dtype", 0.0) for call, _ in found]
        return found[0][1] if found else "", faults

    def _scale(self, steps, level):
        """Return (safe scale, first skips, the scale in use, faults)."""
        if level.low is not torch.float16:
            return None, 0, 1.0, []
        largest = [step.largest_gradient()[0] for step in steps]
        safe = min(2.0 ** math.floor(math.log2(LARGEST / max(largest))), 2.0**24) if any(largest) else 2.0**24
        step = steps[largest.index(max(largest))]
        if level.scale is not None:
            is_beyond = max(largest) * level.scale > LARGEST
            margin = math.log2(max(largest) * level.scale / LARGEST) if is_beyond else 0.0
            faults = [step.gradient_overflow(LARGEST / level.scale, margin)] if is_beyond else []
            return safe, 0, level.scale, faults
        skipped = self._skipped(largest, level.init_scale)
        is_late = len(skipped) > SKIPPED_SHARE * self._length and skipped[-1] >= LONGEST_SEARCH
        if not is_late and len(skipped) <= MANY_SKIPPED * self._length:
            return safe, len(skipped), min(level.init_scale, safe), []
        beyond = math.log2(level.init_scale * max(largest) / LARGEST)
        limit = min(LARGEST / level.init_scale * 2.0 ** min(beyond / 2, LONGEST_SEARCH), max(largest) / 2)
        return safe, len(skipped), safe, [step.gradient_overflow(limit, beyond)]

    def _skipped(self, largest, scale):
        """Return the numbers of the steps that a dynamic scale would skip.

        The largest gradient of a param is known for every step. The largest half gradient is assumed to be the same
        multiple of it as in the recorded steps.

        Args:
            largest: the largest half gradient of each recorded step.
        """
        gradients = self._observed.gradients
        per_step = len(gradients) / self._length if self._length else 0
        if per_step != int(per_step) or not per_step:  # optimizers that do not step together
            skips = max(0, math.ceil(math.log2(scale * max(largest) / LARGEST))) if any(largest) else 0
            return list(range(skips))
        steps = [max(gradients[place : place + int(per_step)]) for place in range(0, len(gradients), int(per_step))]
        known = [(each.number, size) for each, size in zip(self._observed.steps, largest) if each.number < len(steps)]
        ratio = max([size / steps[number] for number, size in known if steps[number]], default=0.0)
        skipped = []
        for number, size in enumerate(steps):
            if size * ratio * scale > LARGEST:
                skipped.append(number)
                scale /= 2
        return skipped

    @property
    def _length(self):
        return len(self._observed.losses)

    # -- lost progress -------------------------------------------------------------------------------------------------

    def _lost(self, steps, level, scale):
        """Return the faults of gradients and updates that become 0, if the loss would be affected."""
        params = [each for each in self._observed.params if each.progress > 0]
        total = sum(each.progress for each in params)
        broken = [] if level.has_masters else self._broken_weights(level)
        if broken or not total:
            return broken
        shares, faults = self._survival(steps, scale)
        lost, updates = 0.0, []
        limit = LOST_PROGRESS if level.kept == self._level.kept else LOST_PROGRESS / 4
        for each in params:
            key = each.model, each.name
            share = shares.get(key, 1.0)
            followed = 1.0 if level.has_masters or self._is_kept(each, level) else min(1.0, max(0.0, each.kept))
            lost += each.progress / total * (1.0 - share * followed)
            if followed < 1 - limit and share >= 0.5:
                half_unit = 2.0**-12 * each.weight
                margin = math.log2(half_unit / each.update) if each.update and half_unit else 0.0
                updates.append(Fault(_place(each), "step", "lost_updates", margin))
        return faults + updates if lost >= limit and lost * self._fall() >= LOSS_EXCESS else []

    def _survival(self, steps, scale):
        found, faults = {}, []
        for step in steps:
            shares, own = step.survival(scale, self._power)
            faults += own
            for key, share in shares.items():
                found.setdefault(key, []).append(share)
        return {key: sum(shares) / len(shares) for key, shares in found.items()}, faults

    def _broken_weights(self, level):
        """Return the faults of half weights that become inf or nan, or diverge, in the optimizer's own arithmetic."""
        found = []
        for each in self._broken_params(level):
            kind, margin = ("epsilon", math.log2(2.0**TO_ZERO / each.eps)) if each.eps else ("overflow", 0.0)
            found.append(Fault(_place(each), each.optimizer, kind, margin))
        return found

    def _broken_params(self, level):
        broken = [each for each in self._observed.params if not each.is_finite or abs(each.kept) >= TOO_FAR]
        return [each for each in broken if not self._is_kept(each, level)]

    def _zero_eps(self, level):
        """Return ``Prediction.zero_eps``."""
        broken = [] if level.has_masters else self._broken_params(level)
        return next(((each.optimizer, each.eps) for each in broken if 0.0 < each.eps < 2.0**TO_ZERO), None)

    @staticmethod
    def _is_kept(param, level):
        place = _place(param)
        return place.layer_of(level.kept) is not None or tuple(place) in level.batch_norms

    def _fall(self):
        """Return the decrease of the loss as a share of its last value."""
        losses = [loss for loss in self._observed.losses if math.isfinite(loss)]
        width = max(1, len(losses) // 10)
        first, last = sorted(losses[:width])[width // 2], sorted(losses[-width:])[width // 2]
        middle = sorted(map(abs, losses))[len(losses) // 2]
        return (first - last) / (max(abs(last), 0.05 * middle) or 1.0)

    # -- layers in float32 ---------------------------------------------------------------------------------------------

    def _search(self, outcome):
        """Return the smallest set of layers found with which no fault is left, or None."""
        level, kept = self._level, ()
        for _ in range(_ROUNDS):
            places = [fault.place for fault in outcome.faults]
            new = {place.module for place in places if place.model is not None and place.layer_of(kept) is None}
            if not outcome.faults:
                break
            new = new or {place.module.rpartition(".")[0] for place in places if place.model is not None}
            if not new or "" in new:
                return None
            kept = _outermost(kept + tuple(sorted(new)))
            outcome = self._outcome(level._replace(kept=level.kept + kept))
        if outcome.faults or not self._leaves_half(kept):
            return None
        return self._fewest(kept)

    def _fewest(self, kept):
        for name in kept:
            fewer = tuple(each for each in kept if each != name)
            outcome = self._outcome(self._level._replace(kept=self._level.kept + fewer))
            if fewer and not outcome.faults:
                kept = fewer
        return kept

    def _leaves_half(self, kept):
        """Return whether ``LEFT_IN_HALF`` of the level's half matrix products still run in half."""
        level = self._level._replace(kept=self._level.kept + kept)
        before, after = [_half_products(self._observed.steps[0], each) for each in (self._level, level)]
        return after >= max(1, LEFT_IN_HALF * before)


def _half_products(sampled, level):
    """Return the number of matrix products of a step that run in half."""
    seen = StepDtypes(sampled.record, level).seen
    products = [call for call in sampled.record.calls if level.table.get(call.op) == HALF]
    return sum(1 for call in products if level.low in seen[call.index])


def make_level(observed, name):
    """Return the ``LevelDtypes`` with the options that the script passes to ``amp.initialize``."""
    stated = observed.stated
    keywords = {option: stated.get(option) for option in opt_levels.LEVEL_OPTIONS}
    _, policy = opt_levels.resolve(stated.get("opt_level", "O1"), keywords, {"opt_level": name})
    low = policy.patch_torch_functions_type if policy.patch_torch_functions else policy.cast_model_type
    kept = stated.get("keep_fp32") or ()
    kept = (kept,) if isinstance(kept, str) else tuple(each for each in kept if isinstance(each, str))
    return LevelDtypes(
        name=name,
        low=None if low is torch.float32 else low,
        casts_functions=bool(policy.patch_torch_functions),
        has_masters=not policy.casts_model or bool(policy.master_weights),
        scale=None if policy.loss_scale == opt_levels.DYNAMIC else float(policy.loss_scale),
        init_scale=float(stated.get("init_scale") or 2.0**16),
        kept=kept,
        batch_norms=observed.batch_norms if policy.keep_batchnorm_fp32 else frozenset(),
        table=table(process_state.lists.as_data(), process_state.registrations),
    )


def _place(param):
    return OpPlace(param.model, param.name.rpartition(".")[0])


def _merged(faults):
    """Return each fault once, with its largest margin, in order of first occurrence."""
    found = {}
    for fault in faults:
        known = found.get(fault.key)
        found[fault.key] = fault if known is None or fault.margin > known.margin else known
    return list(found.values())


def _outermost(names):
    return tuple(
        sorted({name for name in names if not any(name != each and name.startswith(each + ".") for each in names)})
    )
