"""``SessionMasters``, one per session: which half param has which float32 master, and what scripts write to either.

A half param has one master, whichever optimizers have it. It lives as long as its half param, so that the float32
values that a checkpoint or a new optimizer takes do not depend on when an old one is freed.
"""

import functools
import weakref
from typing import Any, NamedTuple

import torch

from ...support.live_objects import WeakList
from ...support.swapped_tensors import holders
from ...support.tensor_lists import data_of, set_stored_gradient
from ...support.torch_compat.thread_blocks import grad_enabled
from ...support.unversioned_writes import WrittenMemory, watch_methods_in_place
from .grad_of_half_params import GradientsOnRead, ShownGradients
from .master_sync import kept_where_equal
from .remainder_master import restore, value_of


class MasterEntry(NamedTuple):
    """A half param, its master, and the ``OptimizerRecord`` objects that have them, the oldest first.

    The half param and the records are weak references.
    """

    model: Any
    master: torch.Tensor
    records: list

    def living_records(self):
        """Return the records that exist."""
        return [record for record in [reference() for reference in self.records] if record is not None]


class SessionMasters:
    """The masters of a session.

    Args:
        are_weights_shared_by_hand: returns whether ranks may share weights without a data-parallel wrapper.
    """

    def __init__(self, are_weights_shared_by_hand=bool):
        self.writes = WrittenMemory(may_be_written=self._follow_writes)
        self.are_weights_shared_by_hand = are_weights_shared_by_hand
        self._entries = {}  # id(half param) -> its ``MasterEntry``
        self._models = {}  # id(master) -> id(half param)
        self.shown = ShownGradients()
        self._gradients = GradientsOnRead(self._entries, self._models, self._entry_of, self.shown)
        self.shared_ids = set()  # ids of half params that are in several optimizers
        self.stepped_on = []  # masters whose gradients ``drop_gradients`` drops
        self._owners = WeakList()  # the ``OptimizerMasters``
        self._watches_methods = False
        holders.add(self)

    def know(self, model, master):
        """Note the master of a half param, which later optimizers get, too; both are forgotten when the param dies."""
        entry = self._entry_of(model)
        if entry is None or entry.master is not master:
            self._set_entry(model, master, [])

    def add(self, record, pairs, patches):
        """Add the (model, master) pairs of an optimizer.

        Args:
            record: its ``OptimizerRecord``.
            pairs: those that it has.
            patches: the ``PatchStack`` that ends what is watched.
        """
        if not pairs:
            return
        self._owners.add(record.masters)
        for model, master in pairs:
            self.know(model, master)
            entry = self._entry_of(model)
            if record not in entry.living_records():
                entry.records.append(weakref.ref(record))
            if len(entry.living_records()) > 1:
                self.shared_ids.add(id(model))
        self.writes.open(patches)
        if record.configuration.shows_half_gradients:
            self._gradients.open(patches)

    def _entry_of(self, param):
        entry = self._entries.get(id(param))
        return entry if entry is not None and entry.model() is param else None

    def _set_entry(self, model, master, records):
        reference = weakref.ref(model, functools.partial(self._forget, id(model)))
        self._entries[id(model)] = MasterEntry(reference, master, records)
        self._models[id(master)] = id(model)

    def _forget(self, key, reference=None):
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._models.pop(id(entry.master), None)
        self.shown.pop(key, None)
        self.shared_ids.discard(key)

    def records_of(self, param):
        """Return the records of the optimizers that have a half param."""
        entry = self._entry_of(param)
        return [] if entry is None else entry.living_records()

    def is_shared(self, param):
        """Return whether several optimizers that exist have a half param."""
        return id(param) in self.shared_ids and len(self.records_of(param)) > 1

    def chunks_of_others(self, owner):
        """Return the chunks of all ``OptimizerMasters`` but ``owner``."""
        return [chunk for each in self._owners if each is not owner for chunk in each.chunks]

    def drop_gradients(self):
        """Drop gradients of shared params that a step has used, where they are not kept."""
        while self.stepped_on:
            set_stored_gradient(self.stepped_on.pop(), None)

    def may_store(self, params):
        """Return whether these half params and masters may be stored: nothing can write to them unseen.

        Another optimizer's step could, or an alias that a script has kept.
        """
        return not any([param in self.writes or self.is_shared(param) for param in params])

    def restore_before_writes(self, patches):
        """Restore stored masters before a method in place writes to their half params; undone by ``patches``."""
        if not self._watches_methods:
            patches.defer(setattr, self, "_watches_methods", False)
            self._watches_methods = True
            watch_methods_in_place(torch.nn.Parameter, lambda param: self._restore(id(param)), patches)

    def _restore(self, key):
        """Give a stored master its value, before its half param is written, whose id is ``key``."""
        entry = self._entries.get(key)
        if entry is not None and entry.model() is not None:
            restore(entry.master)

    def _follow_writes(self, key):
        """Before ``.data`` of a half param or a master, whose id is ``key``, is written: let it follow the other."""
        self._restore(key)
        entry = self._entries.get(self._models.get(key, key))
        if entry is not None and entry.model() is not None:
            for record in entry.living_records():
                for chunk in record.masters.chunks:
                    chunk.follow_writes(entry.master, is_master_next=key != id(entry.model()))

    def follow_models(self):
        """Move masters to the devices of half params that a script has moved, of all optimizers."""
        for owner in self._owners:
            owner.follow_models()

    def show_written(self):
        """Round the masters that a script has written into their half params, of all optimizers."""
        for owner in self._owners:
            owner.show_written()

    def find(self, param):
        """Return the master of ``param``, or None."""
        entry = self._entry_of(param)
        return None if entry is None else entry.master

    def release(self, param):
        """Forget a half param that gets another tensor (``swapped_tensors``); return a function that adds it again."""
        entry = self._entry_of(param)
        if entry is None:
            return None
        restore(entry.master)
        del self._entries[id(param)]  # and its weak reference
        return functools.partial(self._set_entry, param, entry.master, entry.records)

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
            with grad_enabled(False):
                data_of(master).copy_(value)  # no write of the script: the half param gets it, too

    def leave(self, owner, pairs):
        """Note that an ``OptimizerMasters`` no longer has these (model, master) pairs; the masters stay known."""
        for entry in [self._entry_of(model) for model, _ in pairs]:
            if entry is not None:
                entry.records[:] = [each for each in entry.records if each() is None or each().masters is not owner]

    def forget(self, owner, pairs):
        """Forget (model, master) pairs of an ``OptimizerMasters``, except those that other optimizers have or had."""
        self.leave(owner, pairs)
        for entry in [self._entry_of(model) for model, _ in pairs]:
            if entry is not None and not entry.records:
                self._forget(id(entry.model()))

    def clear(self):
        """Forget all pairs."""
        self._entries.clear()
        self._models.clear()
        self.shown.clear()

    def __reduce__(self):  # copies and pickles of what refers to a store have an empty one
        return SessionMasters, ()
