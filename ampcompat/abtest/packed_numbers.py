"""Long series of numbers in a few bytes each: in memory as arrays, in JSON as packed lists.

A packed list has an entry ``[value, times]`` for three and more equal values in a row: ``[1, 1, 0, 0, 0]`` is
``[1, 1, [0, 3]]``.
"""

import itertools
import math
import operator
from array import array
from collections.abc import Sequence

#: The most numbers that a packed list may stand for, so that a few bytes of a damaged file cannot fill the memory.
MAX_LENGTH = 10**7


class Numbers(array):
    """An array that is equal to a list of the same numbers."""

    __hash__ = None

    def __eq__(self, other):
        return list(self) == list(other) if isinstance(other, (list, tuple, array)) else NotImplemented


class Rows(Sequence):
    """A list of tuples ``(step, loss_id, value)`` or ``(step, value)``, kept in ``columns``, one array for each place.

    Args:
        types: the type codes of the arrays: ``"iid"`` or ``"id"``.
        rows: the first tuples.
    """

    def __init__(self, types, rows=()):
        self.columns = tuple(map(Numbers, types))
        self._by_step = {}  # loss_id -> what ``by_step`` returned, until rows change
        self += rows

    def append(self, row):
        """Add a tuple."""
        for column, value in zip(self.columns, row):
            column.append(value)
        self._by_step.clear()

    def __iadd__(self, rows):
        for row in rows:
            self.append(row)
        return self

    def __setitem__(self, index, row):
        for column, value in zip(self.columns, row):
            column[index] = value
        self._by_step.clear()

    def __getitem__(self, index):
        found = [column[index] for column in self.columns]
        return list(zip(*found)) if isinstance(index, slice) else tuple(found)

    def __len__(self):
        return len(self.columns[0])

    def __iter__(self):
        return zip(*self.columns)

    def __eq__(self, other):
        return list(self) == list(other) if isinstance(other, (list, Rows)) else NotImplemented

    __hash__ = None

    def __repr__(self):
        return repr(list(self))

    def by_step(self, loss_id):
        """Return the steps of one loss, in order, and its values; the mean if a step has several."""
        if loss_id not in self._by_step:
            steps, ids, values = self.columns
            if ids.count(loss_id) != len(ids):
                is_own = [each == loss_id for each in ids]
                steps, values = [array(each.typecode, itertools.compress(each, is_own)) for each in (steps, values)]
            if not all(map(operator.lt, steps, steps[1:])):
                steps, values = _means(steps, values)
            self._by_step[loss_id] = steps, values
        return self._by_step[loss_id]


def _means(steps, values):
    passes = {}
    for step, value in zip(steps, values):
        passes.setdefault(step, []).append(value)
    means = [sum(passes[step]) / len(passes[step]) for step in sorted(passes)]
    return array("i", sorted(passes)), array("d", means)


def packed(values):
    """Return a packed list of values; nan, inf and -inf, which JSON does not have, become strings."""
    found = []
    for value, group in itertools.groupby(values, None if all(map(math.isfinite, values)) else json_number):
        times = len(list(group))
        found += [value] * times if times < 3 else [[value, times]]
    return found


def json_number(value):
    """Return a number as JSON has it: nan and inf as strings."""
    return value if math.isfinite(value) else repr(value)


def unpacked(entries):
    """Return the list that a packed list stands for.

    Raises:
        ValueError: a list in it is not ``[value, times]``, or the result would be too long.
    """
    if list not in set(map(type, entries)):
        return entries
    found, start = [], 0
    for index, entry in enumerate(entries):
        if type(entry) is list:
            found += entries[start:index]
            if len(entry) != 2 or type(entry[1]) is not int or not 0 < entry[1] <= MAX_LENGTH - len(found):
                raise ValueError(entry)
            found += entry[:1] * entry[1]
            start = index + 1
    return found + entries[start:]


def length(tree):
    """Return for how many numbers the packed lists in a JSON value stand at most, without making them."""
    found, waiting = 0, [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            lists = [each for each in value if type(each) in (list, dict)]
            pairs = [each for each in lists if type(each) is list and len(each) == 2 and type(each[1]) is int]
            found += sum(times for _, times in pairs if 0 < times <= MAX_LENGTH)  # `unpacked` refuses others
            waiting += lists
    return found


def differences(steps):
    """Return the difference of each step from the previous one, the first from -1: ones if no step is left out."""
    return list(map(operator.sub, steps, itertools.chain([-1], steps)))


def sums(gaps):
    """Return the steps that have these ``differences``."""
    return list(itertools.accumulate(itertools.chain([-1], gaps)))[1:]


def single(values):
    """Return floats as shortest decimals that give the same float32; None if one of them is not a float32 value."""
    exact = array("f", values)
    if array("d", exact).tobytes() != array("d", values).tobytes():
        return None
    found = [math.nan] * len(exact)
    for digits in ("%.7g", "%.8g", "%.9g"):
        pairs = zip(found, array("f", found), exact)
        found = [short if back == value else float(digits % value) for short, back, value in pairs]
    return found
