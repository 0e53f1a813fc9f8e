"""Pairs the operations of two recorded steps by module, call of the module, direction and name, in order."""

from difflib import SequenceMatcher

from .step_record import COPY


def aligned(reference, compared):
    """Return ``{index of an operation of compared: index of that of reference}``.

    Conversions, copies and views are left out: they return the values of their input, and the two steps differ in them.
        Shapes must be equal, unless they differ throughout, as with a different batch size.

    Args:
        reference, compared: two ``StepRecord``.
    """
    pairs = {}
    for direction in ("forward", "backward"):
        ours = [op for op in reference.ops if op.kind != COPY and op.direction == direction]
        others = [op for op in compared.ops if op.kind != COPY and op.direction == direction]
        found = _blocks(ours, others, _Key(reference, compared, has_place=True, has_shapes=True))
        if 2 * len(found) < min(len(ours), len(others)):
            found += _between(ours, others, found, _Key(reference, compared, has_place=True))
        found += _between(ours, others, found, _Key(reference, compared, has_shapes=True))
        pairs.update({other.index: mine.index for mine, other in found})
    return _consistent(reference, compared, pairs)


def _consistent(reference, compared, pairs):
    """Return the pairs whose inputs also come from paired operations.

    The autograd engine accumulates gradients in the order in which they arrive, which casts change.
    """
    kept, taken = {}, set()
    for index in sorted(pairs):
        sources = [_source(compared, value) for value in compared.ops[index].inputs]
        others = [_source(reference, value) for value in reference.ops[pairs[index]].inputs]
        both = [(mine, other) for mine, other in zip(sources, others) if mine in kept and other in taken]
        is_alike = all(kept[mine] == other for mine, other in both)
        if compared.ops[index].direction == "backward" and compared.ops[index].base == "add":
            is_alike = is_alike and all((mine in kept) == (other in taken) for mine, other in zip(sources, others))
        if is_alike:
            kept[index] = pairs[index]
            taken.add(pairs[index])
    return kept


def _source(record, value):
    """Return the index of the operation that computed a value, before conversions, copies and views, or None."""
    index = record.values[value].op
    while index is not None and record.ops[index].kind == COPY:
        inputs = record.ops[index].inputs
        index = record.values[inputs[-1 if "copy_" in record.ops[index].name else 0]].op if inputs else None
    return index


class _Key:
    """The key that two paired operations have in common."""

    def __init__(self, reference, compared, has_place=False, has_shapes=False):
        self._values = reference.values, compared.values
        self._has_place, self._has_shapes = has_place, has_shapes

    def of(self, side, op):
        values = self._values[side]
        shapes = tuple([values[index].shape for index in op.inputs + op.outputs]) if self._has_shapes else ()
        return op.base, len(op.inputs), shapes, (op.place, op.module_call) if self._has_place else ()


def _blocks(ours, others, key):
    """Return pairs of operations of two lists: those of the longest common blocks, in the order of both."""
    keys = [[key.of(side, op) for op in ops] for side, ops in enumerate((ours, others))]
    blocks = SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks()
    return [(ours[block.a + at], others[block.b + at]) for block in blocks for at in range(block.size)]


def _between(ours, others, found, key):
    """Return pairs of operations between those that are already paired, since modules may have different names."""
    more, starts = [], (0, 0)
    ends = [{op.index: at for at, op in enumerate(ops)} for ops in (ours, others)]
    found = sorted(found, key=lambda pair: pair[1].index)
    for mine, other in found + [(None, None)]:
        stops = (len(ours), len(others)) if mine is None else (ends[0][mine.index], ends[1][other.index])
        gaps = ours[starts[0] : stops[0]], others[starts[1] : stops[1]]
        more += _blocks(*gaps, key) if all(gaps) else []
        starts = stops[0] + 1, stops[1] + 1
    return more


def upstream(record, paired, value):
    """Return the unpaired operations that compute a value from results of paired ones, in order.

    Args:
        record: the ``StepRecord``.
        paired: the indices of its operations that have a counterpart.
        value: the index of the value.
    """
    found, waiting, seen = [], [value], set()
    while waiting:
        index = record.values[waiting.pop()].op
        if index is None or index in seen or index in paired:
            continue
        seen.add(index)
        op = record.ops[index]
        found += [op] if op.kind != COPY else []
        waiting.extend(op.inputs)
    return sorted(found, key=lambda op: op.index)


def without_common(ours, others):
    """Return two lists of operations without those that both have; unchanged if both have all.

    Args:
        ours, others: lists of ``StepOp``.
    """
    left, rest = [], list(others)
    for op in ours:
        found = next((other for other in rest if other.base == op.base), None)
        if found is None:
            left.append(op)
        else:
            rest.remove(found)
    return (left, rest) if left or rest else (ours, others)
