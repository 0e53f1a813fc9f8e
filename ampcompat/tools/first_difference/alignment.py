"""Pairs the operations of two recorded steps: by module, call of the module, direction and name, in their order."""

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
    if 2 * len(pairs) < min(len(_counted(reference)), len(_counted(compared))):
        pairs = _aligned(reference, compared, has_shapes=False)
    return _consistent(reference, compared, pairs)


def _consistent(reference, compared, pairs):
    """Return the pairs whose inputs come from paired operations too, as far as those are paired.

    The autograd engine adds up gradients in the order in which they come, which casts change.
    """
    kept, taken = {}, set()
    for index in sorted(pairs):
        sources = [_source(compared, value) for value in compared.ops[index].inputs]
        others = [_source(reference, value) for value in reference.ops[pairs[index]].inputs]
        both = [(mine, other) for mine, other in zip(sources, others) if mine in kept and other in taken]
        if all(kept[mine] == other for mine, other in both):
            kept[index] = pairs[index]
            taken.add(pairs[index])
    return kept


def _source(record, value):
    """Return the index of the operation that computed a value, before casts, copies and views; None without one."""
    index = record.values[value].op
    while index is not None and record.ops[index].kind == COPY:
        inputs = record.ops[index].inputs
        index = record.values[inputs[-1 if "copy_" in record.ops[index].name else 0]].op if inputs else None
    return index


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
