"""``SessionMasters``, one per session: which half param has which float32 master, and what scripts write to either.

A master lives as long as its half param, whether or not an optimizer still has it, so that the float32 values that a
checkpoint or a new optimizer takes do not depend on when an old one is freed.
"""

import collections
import functools
import weakref
from typing import Any, NamedTuple

import torch

from ...support.swapped_tensors import holders
from ...support.tensor_lists import stored_gradient
from ...support.unversioned_writes import WrittenMemory, watch_methods_in_place
from ...support.weak_list import WeakList
from .half_and_master_chunks import kept_where_equal
from .shown_gradients import GradientsOnRead
from .stored_master import restore, value_of


class MasterEntry(NamedTuple):
    """A half param, its master, its ``HeldGradients``, and whether ``.grad`` of the half param shows them.

    The half param and its gradients are weak references.
    """

    model: Any
    master: torch.Tensor
    gradients: Any
    shows_gradients: bool


class SessionMasters:
    """The masters of a session.

    Args:
        are_weights_shared_by_hand: returns whether ranks may share weights without a data-parallel wrapper.
    """

    def __init__(self, are_weights_shared_by_hand=bool):
        self.writes = WrittenMemory(may_be_written=self._restore)
        self.are_weights_shared_by_hand = are_weights_shared_by_hand
        self._entries = {}  # id(half param) -> its ``MasterEntry`` objects, those of the newest optimizer last
        self._gradients = GradientsOnRead(self._entries, self._showing)
        self.shared_ids = set()  # ids of half params that are in several optimizers
        self._owners = WeakList()  # the ``OptimizerMasters``
        self._watches_methods = False
        holders.add(self)

    def add(self, owner, pairs, gradients, patches, shows_gradients=True):
        """Add the pairs of an optimizer.

        Args:
            owner: its ``OptimizerMasters``.
            pairs: (model, master) pairs; one is removed when the half param dies.
            gradients: the ``HeldGradients`` of the optimizer.
            patches: the ``PatchStack`` that ends what is watched.
            shows_gradients: whether ``.grad`` of the half params shows the gradients of the masters.
        """
        if not pairs:
            return
        self._owners.add(owner)
        for model, master in pairs:
            known = [each for each in self._entries_of(model) if each.master is not master]
            others = [each for each in known if each.gradients() is not None]
            for each in others:
                restore(each.master)
            own = MasterEntry(None, master, weakref.ref(gradients), shows_gradients)
            self._set_entries(model, others + [own])
        self.writes.open(patches)
        if shows_gradients:
            self._gradients.open(patches)

    def _entries_of(self, param):
        entries = self._entries.get(id(param), ())
        return entries if entries and entries[0].model() is param else ()

    def _set_entries(self, model, entries):
        reference = weakref.ref(model, functools.partial(self._forget, id(model)))
        self._forget(id(model))
        if entries:
            self._entries[id(model)] = [each._replace(model=reference) for each in entries]
        if len(entries) > 1:
            self.shared_ids.add(id(model))

    def _forget(self, key, reference=None):
        self._entries.pop(key, None)
        self.shared_ids.discard(key)

    def _newest(self, param):
        """Return the ``MasterEntry`` of the newest optimizer of a half param that exists; of the last one, or None."""
        entries = self._entries_of(param)
        for entry in reversed(entries):
            if entry.gradients() is not None:
                return entry
        return entries[-1] if entries else None

    def _showing(self, param):
        """Return the ``MasterEntry`` whose gradient ``.grad`` of a half param shows: the newest that has one."""
        for entry in reversed(self._entries_of(param)):
            if entry.gradients() is not None and stored_gradient(entry.master) is not None:
                return entry
        return self._newest(param)

    def may_store(self, params):
        """Return whether these half params and masters may be stored: nothing can write to them unseen.

        Another optimizer's step could, or an alias that a script has kept.
        """
        return not any([param in self.writes or id(param) in self.shared_ids for param in params])

    def in_several(self, records):
        """Return the half params of which several of these ``OptimizerRecord`` objects have masters."""
        if not self.shared_ids:
            return []
        found = collections.Counter(pair.model for record in records for pair in record.pairs())
        return [param for param, count in found.items() if count > 1]

    def restore_before_writes(self, patches):
        """Restore stored masters before a method in place writes to their half params; undone by ``patches``."""
        if not self._watches_methods:
            patches.defer(setattr, self, "_watches_methods", False)
            self._watches_methods = True
            watch_methods_in_place(torch.nn.Parameter, lambda param: self._restore(id(param)), patches)

    def _restore(self, key):
        """Give a stored master its value, before its half param is written, whose id is ``key``."""
        for entry in self._entries.get(key, ()):
            if entry.model() is not None:
                restore(entry.master)

    def show_written(self):
        """Round the masters that a script has written into their half params, of all optimizers."""
        for owner in self._owners:
            owner.show_written()

    def find(self, param):
        """Return the master of ``param``, or None."""
        entry = self._newest(param)
        return None if entry is None else entry.master

    def others(self, param, master):
        """Return the masters of a half param that other optimizers have than that of ``master``."""
        if id(param) not in self.shared_ids:
            return []
        known = [each for each in self._entries_of(param) if each.gradients() is not None]
        return [each.master for each in known if each.master is not master]

    def release(self, param):
        """Forget a half param that gets another tensor (``swapped_tensors``); return a function that adds it again."""
        entries = [each._replace(model=None) for each in self._entries_of(param)]
        if not entries:
            return None
        for entry in entries:
            restore(entry.master)
        self._forget(id(param))
        return functools.partial(self._set_entries, param, entries)

    def widened(self, param, value):
        """Return ``value``, the value of a half param, with the precision of its master.

        Elements that the script has written to the half param are those of the half param.
        """
        master = self.find(param)
        if master is None:
            return None
        return kept_where_equal(value_of(master).to(value.device), value)

    def load(self, param, value):
        """Give the master of ``param``, if it has one of this shape, the value that is loaded into the half param."""
        master = self.find(param)
        if master is not None and isinstance(value, torch.Tensor) and value.shape == master.shape:
            with torch.no_grad():
                master.copy_(value)

    def forget(self, pairs):
        """Forget (model, master) pairs; masters that other optimizers have of these half params are kept."""
        for model, master in pairs:
            self._set_entries(model, [each for each in self._entries_of(model) if each.master is not master])

    def clear(self):
        """Forget all pairs."""
        self._entries.clear()

    def __reduce__(self):  # copies and pickles of what refers to a store have an empty one
        return SessionMasters, ()
