"""Expansion of the op table's rows to functions, methods and in-place forms, and the merge with the user's edits.

A row names more than one function: ``torch.exp`` stands for ``Tensor.exp`` and ``Tensor.exp_`` too. A backend skips
names that its torch does not have. Owners are dotted names, so this module does not import torch.
"""

import functools
from typing import Any, NamedTuple

from .function_dtypes import (
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
    WRITTEN,
)

USER_RULES = (HALF, FLOAT, PROMOTE, SEQUENCE, BANNED)
RULES = USER_RULES + (FLOAT_IN_PLACE, FOLLOW_SELF, PASSTHROUGH, FLOAT32_INSIDE)


class OpRow(NamedTuple):
    """One function and its rule.

    ``owner`` is a dotted name, or the object itself where a user registered it. ``no_nested_casts``: what the
    function calls inside runs without casts, because they would undo the rule. ``source`` is the written row that this
    one comes from.
    """

    owner: Any
    name: str
    rule: str
    reason: str = "apex"
    no_nested_casts: bool = False
    source: Any = None

    @property
    def key(self):
        """What makes two rows the same function."""
        return (self.owner, self.name)


def _in_place_rule(rule):
    return {FLOAT: FLOAT_IN_PLACE, HALF: FOLLOW_SELF, PROMOTE: FOLLOW_SELF}.get(rule)


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
    if in_place:
        for owner in (TENSOR, TORCH, FUNCTIONAL):
            expanded.append(row._replace(owner=owner, name=row.name + "_", rule=in_place))
    return expanded


def _has_no_nested_casts(owner, name, rule, reason):
    return (
        name in NO_NESTED_CASTS
        or owner in NO_NESTED_CASTS_OWNERS
        or rule in (PASSTHROUGH, FLOAT32_INSIDE, BANNED)
        or reason.startswith(NO_HALF_KERNEL)  # many are compositions of products
    )


@functools.lru_cache(maxsize=None)
def written_rows():
    """Return the rows as they are written, before expansion."""
    return tuple(
        OpRow(
            owner,
            name,
            rule,
            reason=reason,
            no_nested_casts=_has_no_nested_casts(owner, name, rule, reason),
        )
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


_LISTS = {"functional_overrides": FUNCTIONAL, "torch_overrides": TORCH, "tensor_overrides": TENSOR}
_BANNED_LIST = "BANNED_FUNCS"  # of names with their messages
_LIST_RULES = {
    "FP16_FUNCS": HALF,
    "FP32_FUNCS": FLOAT,
    "CASTS": PROMOTE,
    "SEQUENCE_CASTS": SEQUENCE,
    _BANNED_LIST: BANNED,
}


def default_lists():
    """Return the written rows as Apex's three modules of lists: plain data for ``amp.lists``, new at each call."""
    lists = {module: {listed: [] for listed in _LIST_RULES} for module in _LISTS}
    modules = {owner: module for module, owner in _LISTS.items()}
    names = {rule: listed for listed, rule in _LIST_RULES.items()}
    for row in written_rows():
        if row.owner in modules and row.rule in names:
            entry = (row.name, BANNED_MESSAGE) if row.rule == BANNED else row.name
            lists[modules[row.owner]][names[row.rule]].append(entry)
    return lists


def _listed_names(lists, module, listed):
    entries = lists.get(module, {}).get(listed, ())
    return [entry if isinstance(entry, str) else entry[0] for entry in entries]


def _edits(lists):
    """Return the (owner, name, rule) that a user took out of the lists, and those that were put in."""
    default = default_lists()
    removed, added = [], []
    for module, owner in _LISTS.items():
        for listed, rule in _LIST_RULES.items():
            before, after = _listed_names(default, module, listed), _listed_names(lists, module, listed)
            removed += [(owner, name, rule) for name in before if name not in after]
            added += [(owner, name, rule) for name in after if name not in before]
    return removed, added


def banned_messages(lists=None):
    """Return {name: message} of the banned functions, the user's own among them."""
    messages = {"binary_cross_entropy": BANNED_MESSAGE}
    for module in _LISTS:
        for entry in (lists or {}).get(module, {}).get(_BANNED_LIST, ()):
            if not isinstance(entry, str):
                messages[entry[0]] = entry[1]
    return messages


def merge(table, lists=None, registrations=()):
    """Return the table with the user's edits of ``amp.lists`` and registrations; later rows win.

    Args:
        lists: data in the shape of ``default_lists()``, as the user left it; None means unedited.
        registrations: (owner object, name, rule) in the order in which they were made.
    """
    removed, added = _edits(lists) if lists is not None else ([], [])
    if not (removed or added or registrations):
        return table
    merged = {row.key: row for row in table}
    for owner, name, rule in removed:
        for row in expand(OpRow(owner, name, rule)):
            merged[row.key] = row._replace(rule=PASSTHROUGH, no_nested_casts=True, reason="removed from amp.lists")
    for owner, name, rule in added:
        for row in expand(OpRow(owner, name, rule, reason="added to amp.lists", no_nested_casts=True)):
            merged[row.key] = row
    known = {row.name for row in table}
    registered = [
        OpRow(owner, name, rule, reason="registered by the user", no_nested_casts=name in known)
        for owner, name, rule in registrations
    ]
    return tuple(merged.values()) + tuple(registered)
