"""The JSON form of dataclasses, which follows from the annotations of their fields; ``special`` fields have their own.

.ci/report_format.py describes the forms.
"""

import functools
import math
from array import array
from dataclasses import dataclass, field, fields, is_dataclass
from typing import List, NamedTuple, Optional, Union, get_type_hints

from . import packed_numbers
from .packed_numbers import Numbers, Rows

_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Damaged(ValueError):
    """A value is not of its form; ``args`` are the names on the way to it."""

    def __str__(self):
        return ".".join(map(str, self.args))


class Form(NamedTuple):
    """Converts JSON values: ``read`` raises ``ValueError`` or ``OverflowError`` for a wrong one."""

    read: object
    write: object = lambda value: value


def _check(is_right):
    if not is_right:
        raise ValueError


def special(form, key=None, **options):
    """Return a field of a dataclass with its own form, and its name in JSON if that differs."""
    return field(metadata={"form": form, "key": key}, **options)


# -- values, lists and dataclasses -------------------------------------------------------------------------------------


def read(kind, tree):
    """Return the value for a JSON value.

    Args:
        kind: a ``Form``, a scalar, a dataclass, or ``Optional``, ``List``, ``Tuple`` or ``Dict`` of kinds. Missing
            names of a dataclass get the field's default, unknown ones are ignored.
    """
    kind = _SCALARS.get(kind, kind)
    if isinstance(kind, Form):
        return kind.read(tree)
    origin, kinds = getattr(kind, "__origin__", None), getattr(kind, "__args__", ())
    if origin is Union:
        return None if tree is None else read(kinds[0], tree)
    _check(isinstance(tree, list if origin in (list, tuple) else dict))
    if origin is list:
        return [_at(index, kinds[0], each) for index, each in enumerate(tree)]
    if origin is tuple:
        _check(len(tree) == len(kinds))
        return tuple(map(read, kinds, tree))
    if origin is dict:
        return _read_map(kinds[1], tree)
    value = kind(**{name: _at(key, of, tree[key]) for name, key, of in _fields(kind) if key in tree})
    _check(not hasattr(kind, "is_consistent") or value.is_consistent())
    return value


def _read_map(kind, tree):
    _check(isinstance(tree, dict) and all(map(_is_text, tree)))
    return {name: _at(name, kind, each) for name, each in tree.items()}


def _at(name, kind, tree):
    """Read a value; an error has its name."""
    try:
        return read(kind, tree)
    except Damaged as error:
        raise Damaged(name, *error.args) from None
    except (ValueError, OverflowError):
        raise Damaged(name) from None


def write(value):
    """Return the JSON value for a value."""
    if is_dataclass(value):
        forms = ((key, getattr(value, name), kind) for name, key, kind in _fields(type(value)))
        return {key: (kind.write if isinstance(kind, Form) else write)(each) for key, each, kind in forms}
    if isinstance(value, dict):
        return {name: write(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(write, value))
    return packed_numbers.json_number(value) if isinstance(value, float) else value


@functools.lru_cache(maxsize=None)
def _fields(cls):
    """Return (name, name in JSON, kind) of the fields of a dataclass."""
    hints = get_type_hints(cls)
    return [
        (each.name, each.metadata.get("key") or each.name, each.metadata.get("form") or hints[each.name])
        for each in fields(cls)
    ]


# -- scalars -----------------------------------------------------------------------------------------------------------


def _scalar(is_right):
    """Return the form of a value that JSON has as it is."""

    def checked(tree):
        _check(is_right(tree))
        return tree

    return Form(checked)


def choice(*names):
    """Return the form of one of these strings or numbers."""
    return _scalar(lambda value: type(value) in (str, int) and value in names)


def optional(form):
    """Return the form of a value that may be null, read as None."""
    return Form(*[lambda value, of=of: None if value is None else of(value) for of in form])


def _is_text(value):
    """Return whether a value is text without half of a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def _is_any(value):
    """Return whether all texts are Unicode, and a float holds all whole numbers."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if (type(each) is int and abs(each) >= 2**63) or (isinstance(each, str) and not _is_text(each)):
            return False
        waiting += [*each, *each.values()] if isinstance(each, dict) else each if isinstance(each, list) else ()
    return True


def _number(tree):
    if type(tree) is str:
        _check(tree in _NONFINITE)
        return _NONFINITE[tree]
    _check(type(tree) is float or (type(tree) is int and abs(tree) < 2**63))
    return float(tree)


_SCALARS = {
    str: _scalar(_is_text),
    int: _scalar(lambda value: type(value) is int and 0 <= value < 2**63),
    float: Form(_number),
    object: _scalar(_is_any),
}


# -- series ------------------------------------------------------------------------------------------------------------


def _column(types, limits=None, after=lambda found: found, before=lambda value: value):
    """Return the form of a packed list (see ``packed_numbers``) of numbers of these types, between two limits.

    ``after``: what converts the list that was read; ``before``: what makes the list to write.
    """

    def unpacked(tree):
        _check(isinstance(tree, list))
        found = packed_numbers.unpacked(tree)
        if str in set(map(type, found)):
            found = [_NONFINITE.get(each, each) if type(each) is str else each for each in found]
        _check(set(map(type, found)) <= types)
        _check(not found or not limits or (limits[0] <= min(found) and max(found) <= limits[1]))
        return after(found)

    return Form(unpacked, lambda value: packed_numbers.packed(before(value)))


def _steps(gaps):
    steps = Numbers("i", packed_numbers.sums(gaps))
    _check(not steps or min(steps) >= 0)
    return steps


_COUNTS = _column({int}, (0, 2**31 - 1))
STEPS = _column({int}, (-(2**31), 2**31), _steps, packed_numbers.differences)
SAMPLES = _column({int}, (0, 2**31 - 1), functools.partial(Numbers, "i"), list)
SECONDS = _column(
    {int},
    (0, 2**53),
    lambda microseconds: Numbers("d", [each / 1e6 for each in microseconds]),
    lambda seconds: [round(each * 1e6) for each in seconds],
)


@dataclass
class Series:
    """Values by step, in columns of equal length."""

    steps: List[int] = special(STEPS, default_factory=list)  # the difference of each value's step from the previous one
    #: the `loss_id` of each value; null for a metric
    losses: Optional[List[int]] = special(optional(_COUNTS), default=None)
    bits: int = special(choice(32, 64), default=64)  # of the floats; those of 32 bits are written with up to 9 digits
    values: List[float] = special(_column({int, float}), default_factory=list)  # the values

    def is_consistent(self):
        """Return whether the columns have the same length."""
        return len({len(each) for each in (self.steps, self.losses, self.values) if each is not None}) == 1


def _series(types):
    """Return the form of ``Rows`` of these types, or of a list of tuples."""

    def rows_of(tree):
        found, rows = read(Series, tree), Rows(types)
        losses = [found.losses or [0] * len(found.steps)] * (len(types) - 2)
        values = found.values if found.bits == 64 else array("f", found.values)
        for own, column in zip(rows.columns, [found.steps] + losses + [values]):
            own.extend(Numbers(own.typecode, column))
        return rows

    def series_of(rows):
        steps, *losses, values = (rows if isinstance(rows, Rows) else Rows(types, rows)).columns
        single = packed_numbers.single(values)
        return write(Series(steps, losses[0] if losses else None, *((64, values) if single is None else (32, single))))

    return Form(rows_of, series_of)


LOSSES, _METRIC = _series("iid"), _series("id")
METRICS = Form(
    functools.partial(_read_map, _METRIC), lambda metrics: {name: _METRIC.write(each) for name, each in metrics.items()}
)
