"""The dtype of every value of a recorded step at a level: by the op table at O1 and O4, otherwise by the weights.

At O2, O3 and O5, a model's weights and arguments are half, its outputs float32, and functions follow torch's type
promotion. A layer of ``keep_fp32`` gets float32 arguments, and its output is cast back (not at O1 and O4).
"""

from typing import Dict, NamedTuple, Optional, Tuple

import torch

from ...engine.op_table import expansion
from ...engine.op_table.function_properties import having
from ...support.containers import BYTES

_DTYPE_METHODS, _FOLLOWS_FIRST = having("changes_dtype"), having("follows_first")
_REFUSES_MIXED, _PROMOTES = having("refuses_mixed"), having("promotes")
_WITHOUT_KERNEL = frozenset(row.name for row in expansion.rows() if row.lacks_half_kernel)


class LevelDtypes(NamedTuple):
    """The facts about a level, with its options, that a forecast needs.

    ``low``: the half dtype, None at O0. ``casts_functions``: O1 and O4. ``scale``: the static loss scale, or None if it
    is dynamic; ``init_scale`` of a dynamic one. ``table``: {function: rule}. ``batch_norms``: of ``(model, name)``.
    """

    name: str
    low: Optional[torch.dtype]
    casts_functions: bool
    has_masters: bool
    scale: Optional[float]
    init_scale: float
    kept: Tuple[str, ...]
    batch_norms: frozenset
    table: Dict[str, str]


def table(lists=None, registrations=()):
    """Return ``{function's name: rule}`` of the op table with the user's changes."""
    merged = expansion.merge(expansion.rows(), lists, [each for each in registrations if each[0] is torch])
    return {row.name: row.rule for row in reversed(merged)}


class StepDtypes:
    """The dtypes of one step at a level.

    Attributes:
        stored: the dtype of each value.
        seen: for each call, the dtypes of the inputs that it gets.
        rounded: the values that are temporarily half: before a layer of ``keep_fp32`` that gets the model's argument,
            and after such a layer.
        error: ``(call, why it raises)`` of the first call that would raise, or None.
    """

    def __init__(self, step, level):
        self._level = level
        self.stored = [None] * len(step.values)
        self.seen = []
        self.rounded = set()
        self.error = None
        self._before_cast = {}  # (place, number of the module's call) -> the dtype before its first cast
        self._values = step.values
        for value in step.values:
            if value.call is None:
                self.stored[value.index] = self._leaf(value)
        for call in step.calls:
            seen = [self._seen(step.values[index], call) for index in call.inputs]
            rule = self._rule(call)
            dtype = self._result(call, seen, rule)
            self._check(call, seen)
            if rule in (expansion.HALF, expansion.FLOAT):
                seen = [dtype] * len(seen)
            elif self._is_product(call) and self._is_mixed(seen):
                seen = [level.low] * len(seen)
            self.seen.append(seen)
            for index in call.outputs:
                self.stored[index] = dtype

    def _leaf(self, value):
        level = self._level
        if value.kind == "input" or level.casts_functions or level.low is None:
            return value.dtype
        if value.place.layer_of(level.kept) is not None or (value.place.model, value.place.module) in level.batch_norms:
            return torch.float32
        return level.low

    def _seen(self, value, call):
        level, dtype = self._level, self.stored[value.index]
        if level.low is None or (value.call is None and value.kind != "input"):
            return dtype
        made, used = value.place, call.place
        before, layer = made.layer_of(level.kept), used.layer_of(level.kept)
        if level.casts_functions:
            return torch.float32 if layer is not None and layer != before else dtype
        is_argument = made.model is None and used.model is not None
        if (before if before != layer else None) or (is_argument and layer):  # not if the whole model is kept
            self.rounded.add(value.index)
        if (made.model is None) != (used.model is None):
            return torch.float32 if used.model is None or layer is not None else level.low
        if layer != before:
            return level.low if layer is None else torch.float32
        return dtype

    # -- results -------------------------------------------------------------------------------------------------------

    def _rule(self, call):
        """Return the rule of the op table for a call, or None if it casts nothing."""
        level = self._level
        if not level.casts_functions or call.place.layer_of(level.kept) is not None or call.op in _DTYPE_METHODS:
            return None
        return level.table.get(call.outer) or level.table.get(call.op)

    def _result(self, call, seen, rule):
        if rule == expansion.HALF:
            return self._level.low
        if rule == expansion.FLOAT:
            return torch.float32
        if rule in (expansion.PROMOTE, expansion.SEQUENCE) and seen:
            return _widest(seen)
        return self._promoted(call, seen)

    def _promoted(self, call, seen):
        if call.op in _DTYPE_METHODS:
            return self._cast(call, seen)
        if call.target is not None:
            return self._like(call)
        if call.op in _WITHOUT_KERNEL and self._level.low in seen:
            return torch.float32
        if self._is_mixed(seen) and (call.op in _REFUSES_MIXED or self._is_product(call)):
            return seen[0]  # see ``engine/casting/refused_calls``
        is_in_place = call.op.endswith("_") and not call.op.endswith("__") or call.op.startswith("__i")
        if is_in_place or call.op in _FOLLOWS_FIRST:
            return seen[0]
        shaped = [dtype for dtype, index in zip(seen, call.inputs) if self._values[index].dims]
        return _widest(shaped or seen)

    def _cast(self, call, seen):
        if len(seen) > 1:  # type_as, and to(other)
            return seen[1]
        key = call.place, call.module_call
        if call.op != "to" or call.target is not torch.float32:
            self._before_cast.setdefault(key, seen[0] if seen else call.target)
            return call.target
        # At O0, ``to(x.dtype)`` looks like ``to(torch.float32)``: it casts back after an earlier conversion in a
        # module, and to the dtype of another tensor whose dtype was read.
        if key in self._before_cast:
            return self._before_cast[key]
        if call.like is not None and call.like not in call.inputs:
            return self._like(call)
        self._before_cast[key] = seen[0] if seen else call.target
        return call.target

    def _like(self, call):
        """Return the dtype of a result requested with ``dtype``, which may have been that of another tensor."""
        if call.like is None or call.target is not self._values[call.like].dtype:
            return call.target
        return self._seen(self._values[call.like], call)

    # -- errors --------------------------------------------------------------------------------------------------------

    def _check(self, call, seen):
        """Note why a call would raise."""
        level = self._level
        is_cast = level.casts_functions and call.place.layer_of(level.kept) is None
        is_refused = is_cast and level.table.get(call.op) == expansion.BANNED and level.low in seen
        if is_refused and self.error is None:
            self.error = call, f"{call.op} refuses half inputs"

    def _is_product(self, call):
        """Return whether a call multiplies without promoting its inputs; at O1 and O4 those are half then."""
        return self._level.table.get(call.op) == expansion.HALF and call.op not in _PROMOTES

    def _is_mixed(self, seen):
        return self._level.low in seen and len(set(seen)) > 1


def _widest(dtypes):
    if torch.float16 in dtypes and torch.bfloat16 in dtypes:
        return max(dtypes, key=BYTES.get) if len(set(dtypes)) > 2 else torch.float32
    return max(dtypes, key=BYTES.get)
