"""Expansion of the op table's rows to functions, methods and in-place forms, and the user's edits of ``amp.lists``.

A row names more than one function: ``torch.exp`` stands for ``Tensor.exp`` and ``Tensor.exp_`` too. A backend skips
names that its torch does not have. Owners are dotted names, so this module does not import torch.
"""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

from .cast_rules import (
    BANNED,
    BANNED_MESSAGE,
    FLOAT,
    FLOAT32_INSIDE,
    FLOAT_IN_PLACE,
    FOLLOW_SELF,
    FUNCTIONAL,
    HALF,
    NO_HALF_KERNEL,
    NO_NESTED_CASTS,
    NO_NESTED_CASTS_OWNERS,
    PASSTHROUGH,
    PROMOTE,
    SEQUENCE,
    TENSOR,
    TORCH,
    WITHOUT_IN_PLACE_ROW,
    WRITTEN,
)
from .casts_by_torch_autocast import ROWS_OF_AUTOCAST

RULES = (HALF, FLOAT, PROMOTE, SEQUENCE, BANNED, FLOAT_IN_PLACE, FOLLOW_SELF, PASSTHROUGH, FLOAT32_INSIDE)


class OpRow(NamedTuple):
    """One function and its rule.

    ``owner`` is a dotted name, or the object itself where a user registered it. ``no_nested_casts``: what the
    function calls inside runs without casts, because they would undo the rule. ``source`` is the written row that this
    one comes from. ``message``: the error message of a banned function, None for ``BANNED_MESSAGE``.
    """

    owner: Any
    name: str
    rule: str
    reason: str = "apex"
    no_nested_casts: bool = False
    source: Any = None
    message: Optional[str] = None

    @property
    def key(self):
        """What makes two rows the same function."""
        return (self.owner, self.name)

    @property
    def name_for_autocast(self):
        """The row's name in ``casts_by_torch_autocast``; None if casts are off inside the function, autocast's too."""
        return None if self.no_nested_casts else f"{self.owner}.{self.name}"

    @property
    def lacks_half_kernel(self):
        """Whether no torch has half kernels for it (for transforms, CUDA has some in float16)."""
        return _lacks_half_kernel(self.reason)


def _in_place_rule(rule):
    return {FLOAT: FLOAT_IN_PLACE, HALF: FOLLOW_SELF, PROMOTE: FOLLOW_SELF}.get(rule)


def out_of_place(name):
    """Return the name of the function of which a name is the in-place form, or the name itself."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def expand(row):
    """Return the row, rows for its name in ``torch``, ``torch.nn.functional`` and ``torch.Tensor``, and in-place forms.

    A function of the same name in another of these computes the same thing, or does not exist.
    """
    row = row._replace(source=row.key)
    if row.name.startswith("__i") and row.name != "__invert__":
        return [row._replace(rule=_in_place_rule(row.rule))]
    if row.owner not in (TORCH, FUNCTIONAL, TENSOR) or row.name.startswith("__") or row.name == "cpu":
        return [row]
    owners = [row.owner] + [owner for owner in (TORCH, FUNCTIONAL, TENSOR) if owner != row.owner]
    expanded = [row._replace(owner=owner) for owner in owners]
    in_place = _in_place_rule(row.rule)
    if in_place and row.name not in WITHOUT_IN_PLACE_ROW:
        for owner in (TENSOR, TORCH, FUNCTIONAL):
            # A device may compute a product in place by the product that its autocast casts.
            alone = row.no_nested_casts or row.rule == HALF
            expanded.append(row._replace(owner=owner, name=row.name + "_", rule=in_place, no_nested_casts=alone))
    return expanded


def _lacks_half_kernel(reason):
    return reason == NO_HALF_KERNEL


def _has_no_nested_casts(owner, name, rule, reason):
    return (
        name in NO_NESTED_CASTS
        or owner in NO_NESTED_CASTS_OWNERS
        or rule in (PASSTHROUGH, FLOAT32_INSIDE, BANNED)
        or _lacks_half_kernel(reason)  # many are compositions of products
    )


@functools.lru_cache(maxsize=None)
def written_rows():
    """Return the rows as they are written, before expansion."""
    return tuple(
        OpRow(owner, name, rule, reason, _has_no_nested_casts(owner, name, rule, reason))
        for owner, rule, names, reason in WRITTEN
        for name in names.split()
    )


@functools.lru_cache(maxsize=None)
def rows():
    """Return the whole table: each function once, a written row before an expanded one."""
    written = written_rows()
    table = {row.key: expand(row)[0] for row in written}
    for row in written:
        for expanded in expand(row):
            table.setdefault(expanded.key, expanded)
    return tuple(table.values())


@functools.lru_cache(maxsize=None)
def _names_of_autocast():
    return frozenset(f"{owner}.{name}" for _, owner, names in ROWS_OF_AUTOCAST for name in names.split())


def is_half_by_autocast(row):
    """Return whether a row has the rule "half", and some torch's autocast applies it by itself on some device."""
    return row.rule == HALF and row.name_for_autocast in _names_of_autocast()


def rows_of_autocast(version, device_types):
    """Return the names of the rows that the autocast of a version of torch applies by itself on all of these devices.

    A release or device that was not recorded has none.
    """
    found = [set() for _ in device_types]
    for which, owner, names in ROWS_OF_AUTOCAST:
        for device_type, rows in zip(device_types, found):
            if "{}.{} {}".format(*version.split(".")[:2], device_type) in which.split(", "):
                rows.update(f"{owner}.{name}" for name in names.split())
    return frozenset(set.intersection(*found)) if found else frozenset()


#: The modules of Apex's lists, each with the owner of its functions, and the lists that each of them has.
_LISTS = {"functional_overrides": FUNCTIONAL, "torch_overrides": TORCH, "tensor_overrides": TENSOR}
_LIST_RULES = {
    "FP16_FUNCS": HALF,
    "FP32_FUNCS": FLOAT,
    "CASTS": PROMOTE,
    "SEQUENCE_CASTS": SEQUENCE,
    "BANNED_FUNCS": BANNED,  # of names with their messages
}


def default_lists():
    """Return the written rows as Apex's three modules of lists: plain data for ``amp.lists``, new at each call."""
    lists = {module: {listed: [] for listed in _LIST_RULES} for module in _LISTS}
    places = {(owner, rule): lists[module][listed]
              for module, owner in _LISTS.items() for listed, rule in _LIST_RULES.items()}  # fmt: skip
    for row in written_rows():
        if (row.owner, row.rule) in places:
            places[row.owner, row.rule].append((row.name, BANNED_MESSAGE) if row.rule == BANNED else row.name)
    return lists


def _entries(lists):
    """Return {(owner, name, rule): message or None} of data in the shape of ``default_lists()``, in its order."""
    found = {}
    for module, owner in _LISTS.items():
        for listed, rule in _LIST_RULES.items():
            for entry in lists.get(module, {}).get(listed, ()):
                name, message = (entry, None) if isinstance(entry, str) else entry
                found[owner, name, rule] = message
    return found


def merge(table, lists=None, registrations=()):
    """Return the table with the user's edits of ``amp.lists`` and registrations; later rows win.

    Args:
        lists: data in the shape of ``default_lists()``, as the user left it; None means unedited.
        registrations: (owner object, name, rule) in the order in which they were made.
    """
    before, after = _entries(default_lists()), _entries(default_lists() if lists is None else lists)
    removed = [each for each in before if each not in after]
    added = [each for each in after.items() if each not in before.items()]
    if not (removed or added or registrations):
        return table
    merged = {row.key: row for row in table}
    for owner, name, rule in removed:
        for row in expand(OpRow(owner, name, rule)):
            merged[row.key] = row._replace(rule=PASSTHROUGH, no_nested_casts=True, reason="removed from amp.lists")
    for (owner, name, rule), message in added:
        for row in expand(OpRow(owner, name, rule, "added to amp.lists", no_nested_casts=True, message=message)):
            merged[row.key] = row
    known = {row.name for row in table}
    registered = [
        OpRow(owner, name, rule, reason="registered by the user", no_nested_casts=name in known)
        for owner, name, rule in registrations
    ]
    return tuple(merged.values()) + tuple(registered)


class OverrideLists:
    """The op table as the three modules of lists that Apex has, for users to edit, each with ``MODULE`` and its lists.

    The table itself does not change. A session compares the lists with it to find the edits.
    """

    def __init__(self):
        for name in _LISTS:
            vars(self)[name] = SimpleNamespace()
        self.restore()

    def restore(self):
        """Undo the user's edits. The three module objects stay the same."""
        from ...support.torch_compat import torch_names  # which imports torch; a page is built without

        for name, lists in default_lists().items():
            module = vars(vars(self)[name])
            module.clear()
            module.update(lists, MODULE=torch_names.find(_LISTS[name]))

    def as_data(self):
        """Return the lists as they are now, in the shape of ``default_lists()``."""
        return {name: vars(lists) for name, lists in vars(self).items()}
