"""Pairs the operations of two recorded steps: by module, call of the module, direction and operation, in their order."""

from difflib import SequenceMatcher

from .step_record import COPY


def aligned(reference, compared):
    """Return ``{index of an operation of compared: index of that of reference}``.

    Casts, copies and views are left out: they give the numbers of their input, and the two steps differ in them. Shapes
    must be equal, unless they differ throughout, as those of another batch size do.

    Args:
        reference, compared: two ``StepRecord``.
    """
    pairs = _aligned(reference, compared, has_shapes=True)
    if 2 * len(pairs) >= min(len(_counted(reference)), len(_counted(compared))):
        return pairs
    return _aligned(reference, compared, has_shapes=False)


def _counted(record):
    return [op for op in record.ops if op.kind != COPY]


def _aligned(reference, compared, has_shapes):
    pairs = {}
    for direction in ("forward", "backward"):
        ours = [op for op in _counted(reference) if op.direction == direction]
        theirs = [op for op in _counted(compared) if op.direction == direction]
        keys = [[_key(record, op, has_shapes) for op in ops] for record, ops in ((reference, ours), (compared, theirs))]
        for block in SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks():
            for place in range(block.size):
                pairs[theirs[block.b + place].index] = ours[block.a + place].index
    return pairs


def _key(record, op, has_shapes):
    shapes = tuple([record.values[index].shape for index in op.inputs + op.outputs]) if has_shapes else ()
    return op.place, op.module_call, op.base, len(op.inputs), shapes


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
