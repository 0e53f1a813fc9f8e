"""Pairs the operations of two recorded steps: by module, call of the module, direction and operation, in their order."""

from difflib import SequenceMatcher

from .step_record import COPY


def aligned(reference, compared):
    """Return ``{index of an operation of compared: index of that of reference}``.

    Casts, copies and views are left out: they give the numbers of their input, and the two steps differ in them.

    Args:
        reference, compared: lists of ``StepOp``.
    """
    first = [op for op in reference if op.kind != COPY]
    second = [op for op in compared if op.kind != COPY]
    pairs = {}
    for direction in ("forward", "backward"):
        ours = [op for op in first if op.direction == direction]
        theirs = [op for op in second if op.direction == direction]
        matcher = SequenceMatcher(None, list(map(_key, ours)), list(map(_key, theirs)), autojunk=False)
        for block in matcher.get_matching_blocks():
            for place in range(block.size):
                pairs[theirs[block.b + place].index] = ours[block.a + place].index
    return pairs


def _key(op):
    return op.place, op.module_call, op.base


def upstream(record, paired, value):
    """Return the operations that compute a value from results of paired ones, none of which is paired, in their order.

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
