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


def _at(name, form, tree):
    """Read a value; an error has its name."""
    try:
        return form.read(tree)
    except Damaged as error:
        raise Damaged(name, *error.args) from None
    except (ValueError, OverflowError):
        raise Damaged(name) from None


# -- scalars -----------------------------------------------------------------------------------------------------------


def scalar(is_right):
    """Return the form of a value that JSON has as it is."""

    def read(tree):
        _check(is_right(tree))
        return tree

    return Form(read)


def choice(*names):
    """Return the form of one of these strings or numbers."""
    return scalar(lambda value: type(value) in (str, int) and value in names)


def _is_text(value):
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _is_any(value):
    """Return whether all texts are Unicode, and a float holds all whole numbers."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if (type(each) is int and abs(each) >= 2**63) or (isinstance(each, str) and not _is_text(each)):
            return False
        waiting += [*each, *each.values()] if isinstance(each, dict) else each if isinstance(each, list) else ()
    return True


def _read_number(tree):
    if type(tree) is str:
        _check(tree in _NONFINITE)
        return _NONFINITE[tree]
    _check(type(tree) is float or (type(tree) is int and abs(tree) < 2**63))
    return float(tree)


BYTES = scalar(lambda value: type(value) is int and abs(value) < 2**63)
SHARE = scalar(lambda value: type(value) in (int, float) and 0 <= value <= 1)

_SCALARS = {
    str: scalar(_is_text),
    int: scalar(lambda value: type(value) is int and 0 <= value < 2**31),
    float: Form(_read_number, packed_numbers.json_number),
    object: scalar(_is_any),
}


# -- containers and dataclasses ----------------------------------------------------------------------------------------


def optional(form):
    """Return the form of a value that may be null, read as None."""
    return Form(*[lambda value, of=of: None if value is None else of(value) for of in form])


def _list_of(form):
    def read(tree):
        _check(isinstance(tree, list))
        return [_at(index, form, each) for index, each in enumerate(tree)]

    return Form(read, lambda value: list(map(form.write, value)))


def _tuple_of(forms):
    def read(tree):
        _check(isinstance(tree, list) and len(tree) == len(forms))
        return tuple(form.read(each) for form, each in zip(forms, tree))

    return Form(read, lambda value: [form.write(each) for form, each in zip(forms, value)])


def map_of(form):
    """Return the form of an object with any names."""

    def read(tree):
        _check(isinstance(tree, dict) and all(map(_is_text, tree)))
        return {name: _at(name, form, each) for name, each in tree.items()}

    return Form(read, lambda value: {name: form.write(each) for name, each in value.items()})


def form_of(annotation):
    """Return the form of a scalar, a dataclass, or ``Optional``, ``List``, ``Tuple`` or ``Dict`` of forms."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if is_dataclass(annotation):
        return Form(functools.partial(_read_record, annotation), _write_record)
    origin, forms = annotation.__origin__, [form_of(each) for each in annotation.__args__ if each is not type(None)]
    if origin is Union:
        return optional(forms[0])
    if origin is dict:
        return map_of(forms[1])
    return _list_of(forms[0]) if origin is list else _tuple_of(forms)


def special(form, key=None, **options):
    """Return a field of a dataclass with its own form, and its name in JSON if that differs."""
    return field(metadata={"form": form, "key": key}, **options)


@functools.lru_cache(maxsize=None)
def _fields(cls):
    """Return (name, name in JSON, form) of the fields of a dataclass."""
    hints = get_type_hints(cls)
    return [
        (each.name, each.metadata.get("key") or each.name, each.metadata.get("form") or form_of(hints[each.name]))
        for each in fields(cls)
    ]


def _read_record(cls, tree):
    """Return a dataclass; missing names get the field's default, unknown ones are ignored."""
    _check(isinstance(tree, dict))
    value = cls(**{name: _at(key, form, tree[key]) for name, key, form in _fields(cls) if key in tree})
    _check(not hasattr(cls, "is_consistent") or value.is_consistent())
    return value


def _write_record(value):
    return {key: form.write(getattr(value, name)) for name, key, form in _fields(type(value))}


# -- series ------------------------------------------------------------------------------------------------------------


def _column(types, limits=None):
    """Return the form of a packed list (see ``packed_numbers``) of numbers of these types, between two limits."""

    def read(tree):
        _check(isinstance(tree, list))
        found = packed_numbers.unpacked(tree)
        if str in set(map(type, found)):
            found = [_NONFINITE.get(each, each) if type(each) is str else each for each in found]
        _check(set(map(type, found)) <= types)
        _check(not found or not limits or (limits[0] <= min(found) and max(found) <= limits[1]))
        return found

    return Form(read, packed_numbers.packed)


def _converted(form, read, write):
    """Return a form whose value is converted after it was read and before it is written."""
    return Form(lambda tree: read(form.read(tree)), lambda value: form.write(write(value)))


def _steps(gaps):
    steps = Numbers("i", packed_numbers.sums(gaps))
    _check(not steps or min(steps) >= 0)
    return steps


_COUNTS = _column({int}, (0, 2**31 - 1))
STEPS = _converted(_column({int}, (-(2**31), 2**31)), _steps, packed_numbers.differences)
SAMPLES = _converted(_COUNTS, functools.partial(Numbers, "i"), list)
SECONDS = _converted(
    _column({int}, (0, 2**53)),
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

    @classmethod
    def of(cls, rows):
        """Return the series of ``Rows``."""
        steps, *losses, values = rows.columns
        single = packed_numbers.single(values)
        return cls(steps, losses[0] if losses else None, *((64, values) if single is None else (32, single)))

    def rows(self, types):
        """Return ``Rows`` of these types."""
        rows, losses = Rows(types), [self.losses or [0] * len(self.steps)] * (len(types) - 2)
        values = self.values if self.bits == 64 else array("f", self.values)
        for own, found in zip(rows.columns, [self.steps] + losses + [values]):
            own.extend(Numbers(own.typecode, found))
        return rows


def _series(types):
    """Return the form of ``Rows`` of these types, or of a list of tuples."""
    of = form_of(Series)
    return _converted(of, lambda found: found.rows(types), lambda rows: Series.of(Rows.of(types, rows)))


LOSSES, METRICS = _series("iid"), map_of(_series("id"))
