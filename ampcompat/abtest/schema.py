"""Descriptions of JSON values, used to check, read, write and document them.

The fields of a dataclass carry their descriptions (``described``), so that the class is the schema of its JSON form.
"""

import json
import math
from array import array
from dataclasses import MISSING, dataclass, field, fields
from typing import List, Optional

from . import packed_numbers
from .packed_numbers import Numbers, Rows

#: The number of characters of a wrong value that an error shows.
SHOWN = 40

_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Form:
    """A kind of JSON value.

    Args:
        says: its description, in errors and in the documentation.
        read: a function: the JSON value and its place in the file -> the value; ``ValueError`` if it is wrong.
        write: a function: the value -> its JSON value.
    """

    def __init__(self, says, read, write=lambda value: value):
        self.says, self.read, self.write = says, read, write


def wrong(place, tree, says):
    """Return the error about a wrong value."""
    shown = repr(tree)
    shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "\u2026"
    return ValueError(f"{place} is {shown}, not {says}")


def _scalar(says, is_right, write=lambda value: value, convert=lambda value: value):
    def read(tree, place):
        if not is_right(tree):
            raise wrong(place, tree, says)
        return convert(tree)

    return Form(says, read, write)


def _is_unicode(value):
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _is_text(value):
    return isinstance(value, str) and _is_unicode(value)


def _is_count(value):
    return type(value) is int and 0 <= value < 2**31


def _is_number(value):
    return type(value) is float or (type(value) is int and abs(value) < 2**63) or value in tuple(_NONFINITE)


def _number(value):
    return _NONFINITE.get(value, value) if isinstance(value, str) else float(value)


def _is_any(value):
    """Return whether a value is Unicode, without whole numbers that a float does not hold."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is int and abs(each) >= 2**63:
            return False
        waiting += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
    return _is_unicode(value)


ANY = _scalar("any value, in Unicode, with whole numbers of up to 64 bits", _is_any)
TEXT = _scalar("text", _is_text)
COUNT = _scalar("a whole number from 0 up", _is_count)
BYTES = _scalar("a number of bytes", lambda value: type(value) is int and abs(value) < 2**63)
SHARE = _scalar("a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1)
NUMBER = _scalar("a number", _is_number, write=packed_numbers.json_number, convert=_number)


def choice(names):
    """Return the form of one of these strings or numbers."""
    return _scalar("one of " + ", ".join(map(str, names)), lambda value: type(value) in (str, int) and value in names)


def optional(form):
    """Return the form of a value that may be null, read as None."""

    def read(tree, place):
        return None if tree is None else form.read(tree, place)

    return Form(form.says + ", or null", read, lambda value: None if value is None else form.write(value))


def list_of(form):
    """Return the form of a list."""
    says = "a list, each " + form.says

    def read(tree, place):
        if not isinstance(tree, list):
            raise wrong(place, tree, says)
        return [form.read(each, f"{place}[{index}]") for index, each in enumerate(tree)]

    return Form(says, read, lambda value: [form.write(each) for each in value])


def pair(*forms):
    """Return the form of a list of fixed length, read as a tuple."""
    says = "[{}]".format(", ".join(form.says for form in forms))

    def read(tree, place):
        if not isinstance(tree, list) or len(tree) != len(forms):
            raise wrong(place, tree, says)
        return tuple(form.read(each, place) for form, each in zip(forms, tree))

    return Form(says, read, lambda value: [form.write(each) for form, each in zip(forms, value)])


def map_of(form):
    """Return the form of an object with any names."""
    says = "an object of names, each " + form.says

    def read(tree, place):
        if not isinstance(tree, dict) or not all(map(_is_text, tree)):
            raise wrong(place, tree, says)
        return {name: form.read(each, f"{place}.{name}") for name, each in tree.items()}

    return Form(says, read, lambda value: {name: form.write(each) for name, each in value.items()})


def record(cls):
    """Return the form of a dataclass whose fields are ``described``; its method ``problem``, if any, checks the whole.

    Missing names get the field's default, unknown names are ignored.
    """

    def read(tree, place):
        if not isinstance(tree, dict):
            raise wrong(place, tree, "an object: a " + cls.__name__)
        found = {}
        for name, key, form in _described(cls):
            if key in tree:
                found[name] = form.read(tree[key], f"{place}.{key}" if place else key)
        value = cls(**found)
        problem = value.problem() if hasattr(cls, "problem") else None
        if problem:
            raise ValueError(f"{place} {problem}")
        return value

    def write(value):
        return {key: form.write(getattr(value, name)) for name, key, form in _described(cls)}

    return Form("a " + cls.__name__, read, write)


def late(name, find):
    """Return the form of a dataclass that is not defined yet; ``find()`` returns its form."""
    return Form("a " + name, lambda tree, place: find().read(tree, place), lambda value: find().write(value))


def described(form, says, default=MISSING, factory=MISSING, key=None):
    """Return a dataclass's field: its JSON form, its meaning, and its name in JSON if that differs."""
    metadata = {"form": form, "says": says, "key": key}
    return (
        field(default=default, metadata=metadata)
        if factory is MISSING
        else field(default_factory=factory, metadata=metadata)
    )


def _described(cls):
    return [(each.name, each.metadata["key"] or each.name, each.metadata["form"]) for each in fields(cls)]


def documentation(classes):
    """Return the descriptions of dataclasses as Markdown: a heading and a table for each."""
    lines = []
    for cls in classes:
        lines += ["", "## " + cls.__name__, "", cls.__doc__.strip(), "", "| name | value | |", "|---|---|---|"]
        for each in fields(cls):
            key, says = each.metadata["key"] or each.name, each.metadata["form"].says
            for name in [cls.__name__ for cls in classes]:
                says = says.replace("a " + name, f"a [{name}](#{name.lower()})")
            lines.append("| `{}` | {} | {} |".format(key, says, each.metadata["says"]))
    return "\n".join(lines) + "\n"


# -- columns -----------------------------------------------------------------------------------------------------------


def column(says, types, limits=None):
    """Return the form of a packed list (see ``packed_numbers``), read as a plain list.

    Args:
        types: the types of its values.
        limits: the least and the largest of them, or None.
    """
    says = "a packed list of " + says

    def is_right(value):
        return type(value) in types and (limits is None or limits[0] <= value <= limits[1])

    def read(tree, place):
        try:
            found = packed_numbers.unpacked(tree if isinstance(tree, list) else [[]])
        except ValueError as error:
            raise wrong(place, error.args[0] if isinstance(tree, list) else tree, says) from None
        kinds = set(map(type, found))
        if str in kinds:
            found = [_NONFINITE.get(each, each) if type(each) is str else each for each in found]
            kinds = set(map(type, found))
        if not kinds <= types or (found and limits and not (limits[0] <= min(found) and max(found) <= limits[1])):
            index = next(index for index, value in enumerate(found) if not is_right(value))
            raise wrong(f"{place}[{index}]", found[index], "a value of " + says)
        return found

    return Form(says, read, packed_numbers.packed)


def converted(form, read, write):
    """Return a form whose value is converted after it was read and before it is written.

    ``read`` may raise ``OverflowError`` or ``ValueError``.
    """

    def read_both(tree, place):
        value = form.read(tree, place)
        try:
            return read(value)
        except (OverflowError, ValueError) as error:
            raise ValueError(f"{place} cannot be read: {error}") from None

    return Form(form.says, read_both, lambda value: form.write(write(value)))


def _steps(gaps):
    steps = Numbers("i", packed_numbers.sums(gaps))
    if steps and min(steps) < 0:
        raise ValueError(f"step {min(steps)} is below 0")
    return steps


_COUNTS = column("whole numbers from 0 up", {int}, (0, 2**31 - 1))
_MICROSECONDS = column("whole numbers from 0 up", {int}, (0, 2**53))
STEPS = converted(column("whole numbers", {int}, (-(2**31), 2**31)), _steps, packed_numbers.differences)
SAMPLES = converted(_COUNTS, lambda counts: Numbers("i", counts), list)
SECONDS = converted(
    _MICROSECONDS,
    lambda microseconds: Numbers("d", [each / 1e6 for each in microseconds]),
    lambda seconds: [round(each * 1e6) for each in seconds],
)


@dataclass
class Series:
    """Values by step, in columns of equal length."""

    steps: List[int] = described(STEPS, "the difference of each value's step from the previous one", factory=list)
    losses: Optional[List[int]] = described(optional(_COUNTS), "the `loss_id` of each value; null for a metric", None)
    bits: int = described(choice((32, 64)), "of the floats; those of 32 bits are written with up to 9 digits", 64)
    values: List[float] = described(
        column('numbers, or "nan", "inf", "-inf"', {int, float}), "the values", factory=list
    )

    def problem(self):
        """Return the error in the columns, or None."""
        lengths = {len(each) for each in (self.steps, self.losses, self.values) if each is not None}
        return "has columns of different lengths" if len(lengths) > 1 else None

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


def series(types):
    """Return the form of ``Rows`` of these types, or of a list of tuples."""
    return converted(record(Series), lambda found: found.rows(types), lambda rows: Series.of(Rows.of(types, rows)))


LOSSES, METRIC = series("iid"), series("id")
NAMED_ERRORS = list_of(pair(TEXT, NUMBER))
