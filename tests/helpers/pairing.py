"""Parametrize a test by several axes without multiplying them.

``@paired("setting, made", SETTINGS, ["before", "after"])`` runs the test often enough for any two values of any two
axes to occur together at least once: faults that need three values at once to show are rare, and a suite that
multiplies its axes is slow. Values may be of ``pytest.param``, with ids and marks; one that is skipped is one case.
"""

import itertools

import pytest


def pairs(*axes):
    """Return tuples with one value of each axis; any two values of two axes are together in at least one."""
    by_size = sorted(range(len(axes)), key=lambda axis: -len(axes[axis]))
    missing = {
        frozenset([(one, i), (other, j)])
        for one, other in itertools.combinations(range(len(axes)), 2)
        for i in range(len(axes[one]))
        for j in range(len(axes[other]))
    }
    found = []
    while missing:
        chosen = dict(min(missing, key=sorted))  # axis -> index of its value
        for axis in by_size:
            if axis not in chosen:
                chosen[axis] = max(range(len(axes[axis])), key=lambda index: _gain(missing, chosen, axis, index))
        missing -= {frozenset(pair) for pair in itertools.combinations(chosen.items(), 2)}
        found.append(tuple(axes[axis][chosen[axis]] for axis in range(len(axes))))
    return found


def _gain(missing, chosen, axis, index):
    """Return how many missing pairs this value of an axis would add to a case."""
    return sum(frozenset([(axis, index), other]) in missing for other in chosen.items())


def paired(names, *axes):
    """Return a mark like ``pytest.mark.parametrize(names, ...)`` with the pairs of the values of these axes."""
    axes = [[_param(value) for value in axis] for axis in axes]
    run = [[param for param in axis if not _is_skipped(param)] for axis in axes]
    cases = pairs(*run) if all(run) else []
    for index, axis in enumerate(axes):
        others = [[param] for param in (other[0] for other in axes)]
        for param in filter(_is_skipped, axis):
            cases += pairs(*others[:index] + [[param]] + others[index + 1 :])
    return pytest.mark.parametrize(names, [_merged(case) for case in cases])


def _param(value):
    """Return the value as a ``pytest.param`` with an id."""
    param = value if isinstance(value, type(pytest.param(0))) else pytest.param(value)
    name = param.id or getattr(param.values[0], "__name__", str(param.values[0]))
    return pytest.param(*param.values, id=name, marks=param.marks)


def _is_skipped(param):
    return any(mark.name == "skip" for mark in param.marks)


def _merged(case):
    """Return one ``pytest.param`` of all values of a case."""
    values = [value for param in case for value in param.values]
    marks = [mark for param in case for mark in param.marks]
    return pytest.param(*values, id="-".join(param.id for param in case), marks=marks)
