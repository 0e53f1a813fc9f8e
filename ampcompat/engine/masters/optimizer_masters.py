"""``OptimizerMasters``: the float32 masters of one optimizer.

It makes them, puts them into ``param_groups``, gives them gradients, and rounds them into the half params, in the
chunks of ``master_sync`` and ``remainder_chunk``.
"""

import functools
import operator
from itertools import chain
from typing import NamedTuple

import torch

from ...errors import AmpError, AmpValueError
from ...support import tensor_lists
from ...support.tensor_lists import set_stored_gradient
from ...support.torch_compat.fake_tensors import is_fake_type
from ...support.torch_compat.thread_blocks import grad_enabled
from . import zero_redundancy_optimizer
from .master_sync import MasterChunk, Snapshot, make_master, move_master, recast, take_values
from .remainder_chunk import RemainderChunk, remainder_chunks_of
from .remainder_master import restore
from .state_of_half_params import make_plain, read_by_param

#: Returns the list of a param group.
PARAMS = operator.itemgetter("params")


class Pair(NamedTuple):
    """A half param of the model and its float32 master."""

    model: torch.nn.Parameter
    master: torch.Tensor


class OptimizerMasters:
    """The masters of one optimizer; none at levels without master weights.

    Args:
        optimizer: the optimizer.
        configuration: its ``Configuration``.
        session_masters: the session's ``SessionMasters``.
    """

    def __init__(self, optimizer, configuration, session_masters):
        policy = configuration.policy
        self.dtype = policy.dtypes.high
        self.are_stored = configuration.stores_remainders  # between steps, by ``remainder_master``
        #: Called before a script reads gradients of the masters; ``HeldGradients`` sets it.
        self.show_gradients = None
        self._optimizer = optimizer
        self._makes_masters = bool(policy.master_weights)
        self._session_masters = session_masters
        self.shown = session_masters.shown  # gradients of half params that scripts have read
        self.writes = session_masters.writes  # what scripts may have written, to half params, masters and gradients
        self._pairs = {}  # id(master) -> Pair
        self.chunks = []  # the same pairs as ``MasterChunk`` objects, whose gradients are moved together
        self._has_begun = False  # the first backward pass
        self._is_committed = False
        self._before = None  # what ``rollback`` restores

    def __bool__(self):
        return bool(self._pairs)

    # -- which params --------------------------------------------------------------------------------------------------

    def pairs(self):
        """Return the (model, master) pairs."""
        return list(self._pairs.values())

    def pairs_by_group(self):
        """Return the pairs, a list per param group."""
        groups = self._optimizer.param_groups
        return [[self._pairs[id(param)] for param in group["params"] if id(param) in self._pairs] for group in groups]

    def unpaired_params(self):
        """Return the params that are their own masters."""
        params = list(chain.from_iterable(map(PARAMS, self._optimizer.param_groups)))
        return [param for param in params if id(param) not in self._pairs] if self._pairs else params

    # -- making and releasing ------------------------------------------------------------------------------------------

    def make_of_groups(self, groups):
        """Replace the half params of new param groups by masters; return the new pairs.

        Raises:
            AmpValueError: a param is in the optimizer already.
        """
        present = {id(param) for group in self._optimizer.param_groups for param in group["params"]}
        known = {id(pair.model) for pair in self._pairs.values() if id(pair.master) in present}
        if any(id(param) in known for group in groups for param in group["params"]):
            raise AmpValueError("some parameters of this group are in the optimizer already: give each one once.")
        return self._replace_params(groups, {})

    def follow_groups(self):
        """Put masters in place of the half params that a script has put into ``param_groups``; return new pairs."""
        if not self._makes_masters:
            return []
        groups = self._optimizer.param_groups
        masters = {id(pair.model): pair.master for pair in self._pairs.values()}
        for group in groups:
            if any([id(param) in masters for param in group["params"]]):  # else a script that keeps the list adds to it
                group["params"] = [masters.get(id(param), param) for param in group["params"]]
        return self._replace_params(groups, {})

    def make_new(self, originals, pairs=()):
        """Make masters of half params that have none, also those that a later ``initialize`` has cast to half.

        ``rollback`` undoes it.

        Args:
            originals: ``{id(param): (data, gradient)}`` from before the model was cast.
            pairs: (model, master) pairs that the optimizer, a copy or pickled, has already.
        """
        self._before = Snapshot(self._optimizer), self._pairs.copy(), list(self.chunks)
        if pairs and not self._makes_masters:
            raise AmpError(
                "An optimizer was pickled with float32 master weights, which this opt_level does not have. Call "
                "amp.initialize at O2 or O5 before amp.scale_loss gets it."
            )
        self._add([Pair(*pair) for pair in pairs])
        self._replace_params(self._optimizer.param_groups, originals)

    def continue_from(self, original):
        """Treat these masters, those of a deep copy, as the ``original`` ones: have they been stepped on?"""
        self._has_begun = original._has_begun
        is_new = any([chunk.is_new for chunk in original.chunks])
        for chunk in self.chunks:
            chunk.is_new = is_new

    def _replace_params(self, groups, originals):
        """Replace half params by masters; move their optimizer state to the masters, in float32."""
        self._drop_removed()
        self._session_masters.follow_models()
        self._session_masters.show_written()
        state, pairs = self._optimizer.state, []
        for params in [group["params"] for group in groups]:
            for index, param in enumerate(params):
                if self._makes_masters and tensor_lists.is_narrower(param, self.dtype):
                    master = self._master_of(param, originals)
                    pairs.append(Pair(param, master))
                    self._pairs[id(master)] = pairs[-1]  # known to ``rollback`` before anything refers to it
                    self._session_masters.know(param, master)
                    params[index] = master
                    if param in state:
                        state[master] = state.pop(param)
                    recast(state.get(master), master.shape, master.dtype)
                elif id(param) in originals:
                    recast(state.get(param), param.shape, param.dtype)
        zero_redundancy_optimizer.replace_params(self._optimizer, dict(pairs))
        self._add(pairs)
        self.follow_state()
        return pairs

    def follow_state(self):
        """Make half params read their masters' state, again where ``optimizer.state`` was replaced."""
        if self._pairs and not getattr(self._optimizer.state, "has_masters", False):
            read_by_param(self._optimizer, self._session_masters.find)

    def _master_of(self, param, originals):
        """Return the master that a half param has, also of an optimizer that this one replaces, or a new one.

        It has what was written to the half param.
        """
        master = self._session_masters.find(param)
        if master is None or master.shape != param.shape:
            return make_master(param, originals, self.dtype)
        restore(master)
        move_master(master, param.device)
        vars(master).update(vars(param))
        take_values([param], [master])
        return master

    def _add(self, pairs):
        self._pairs.update((id(pair.master), pair) for pair in pairs)
        self.chunks += self._chunks_like(self._session_masters.chunks_of_others(self), pairs)
        self.writes.watch([param for pair in pairs for param in pair])

    def _chunks_like(self, chunks, pairs):
        """Return chunks of ``pairs``; those in one of the given ``chunks`` keep what it has noted of them."""
        found, rest = [], {id(pair.master): pair for pair in pairs}
        for chunk in chunks:
            for part in self._chunks_of([rest.pop(id(each)) for each in chunk.masters if id(each) in rest]):
                part.continue_from(chunk)
                found.append(part)
        return found + self._chunks_of(list(rest.values()))

    def _chunks_of(self, pairs):
        stored, rest = remainder_chunks_of(pairs, self) if self.are_stored else ([], pairs)
        return [MasterChunk(each, self.writes) for each in tensor_lists.chunked(rest)] + stored

    def _drop_removed(self):
        """Forget the pairs whose masters a script has taken out of ``param_groups``."""
        present = {id(param) for group in self._optimizer.param_groups for param in group["params"]}
        kept = {key: pair for key, pair in self._pairs.items() if key in present}
        if len(kept) < len(self._pairs):
            self._session_masters.leave(self, [pair for key, pair in self._pairs.items() if key not in kept])
            self.restore_values()
            self._pairs = kept
            self.chunks = self._chunks_like(self.chunks, self.pairs())

    def commit(self):
        """Drop what ``rollback`` needs: ``initialize`` has succeeded."""
        self._is_committed = True
        self._before = None

    def rollback(self):
        """Restore the optimizer as it was before ``make_new``, unless ``commit`` was called."""
        if self._before is None:
            return
        snapshot, pairs, chunks = self._before
        made = [pair for key, pair in self._pairs.items() if key not in pairs]
        make_plain(self._optimizer)
        snapshot.restore(self._optimizer)
        zero_redundancy_optimizer.replace_params(self._optimizer, {master: model for model, master in made})
        self._session_masters.forget(self, made)
        self._pairs, self.chunks = pairs, chunks
        self.follow_state()
        self._before = None

    def release(self):
        """Put the model's params back into the optimizer, with the masters' values. The state stays, in float32.

        Before ``commit``: ``rollback``. It can be called again.
        """
        self.rollback()
        if not self._is_committed:
            return
        released = {id(param): pair for pair in self._pairs.values() for param in pair}
        try:
            self.shown.take_changes(self.pairs())
            self.refresh()
            self.restore_values()
        finally:  # also where a device has lost the values
            self._return_params(released)
        for param in [param for group in self._optimizer.param_groups for param in group["params"]]:
            pair = released.get(id(param))
            recast(self._optimizer.state.get(param), (pair.master if pair else param).shape, self.dtype)
        for model, master in self._pairs.values():
            set_stored_gradient(model, None)
            tensor_lists.set_data(model, tensor_lists.data_of(master).to(model.device))
            set_stored_gradient(model, None if master.grad is None else master.grad.to(model.device))
        self._session_masters.forget(self, self._pairs.values())
        self._pairs.clear()
        self.chunks = []

    def _return_params(self, released):
        """Put the model's params back into the optimizer, and its state to them.

        Args:
            released: ``{id(half param or master): Pair}``.
        """
        make_plain(self._optimizer)
        state = self._optimizer.state
        for group in self._optimizer.param_groups:
            for index, param in enumerate(group["params"]):
                pair = released.get(id(param))
                if pair is not None:
                    group["params"][index] = pair.model
                    if pair.master in state:
                        state[pair.model] = state[pair.master]
                        del state[pair.master]
        zero_redundancy_optimizer.replace_params(
            self._optimizer, {master: model for model, master in self._pairs.values()}
        )

    # -- values --------------------------------------------------------------------------------------------------------

    def refresh(self, new_only=False):
        """Copy to the masters what a script has written to their half params: see ``MasterChunk.refresh``.

        Args:
            new_only: only masters that have not been stepped on. Others are refreshed in ``step``: weights that are
                replaced temporarily and restored before it (an EMA for evaluation, a perturbation for one backward
                pass) leave the low bits of the masters alone.
        """
        self._has_begun = True
        may_have_moved = bool(self.writes.noted)
        if self._session_masters.shared_ids:  # chunks of other optimizers may know since when a master agrees
            self._session_masters.show_written()
        for chunk in self.chunks:
            if not chunk.is_stored and (chunk.is_new or not new_only):
                chunk.refresh(wholly=chunk.is_new and self._session_masters.are_weights_shared_by_hand())
        if may_have_moved:
            self.follow_models()

    def follow_models(self):
        """Move the masters to the devices of their half params, which a script may have moved."""
        if not any([model.device != master.device for model, master in self._pairs.values()]):
            return
        self.restore_values()
        for model, master in self._pairs.values():
            move_master(master, model.device)
        self.chunks = self._chunks_like(self.chunks, self.pairs())

    def show_written(self):
        """Make half params agree with what a script has done to masters: see ``master_sync``."""
        for chunk in self.chunks:
            chunk.follow_requires_grad()
            if not chunk.is_stored:
                chunk.show_written()

    def show_all(self):
        """Round all masters into their half params, which graphs of earlier forward passes may need."""
        for chunk in self.chunks:
            if not chunk.is_stored:
                chunk.show_all()

    def begin(self):
        """Refresh the masters if this is the first backward pass: a script has initialized its weights by then."""
        if not self._has_begun:
            self.refresh()
        for chunk in self._chunks_to_store() if self.are_stored else ():
            if chunk.is_new and chunk.are_rounded():
                chunk.store()

    def _chunks_to_store(self):
        """Return the chunks whose masters can be stored now, and are not."""
        chunks = [chunk for chunk in self.chunks if isinstance(chunk, RemainderChunk) and not chunk.is_stored]
        return [chunk for chunk in chunks if self._session_masters.may_store(chunk.models + chunk.masters)]

    def stored_chunks(self):
        """Return the chunks whose masters are stored now."""
        return [chunk for chunk in self.chunks if chunk.is_stored]

    def are_on_cuda(self):
        """Return whether the first master is on a CUDA device."""
        masters = [pair.master for pair in list(self._pairs.values())[:1]]
        return any(master.is_cuda and not is_fake_type(type(master)) for master in masters)

    def restore_values(self):
        """Give stored masters their values, until the next step has ended."""
        for chunk in self.stored_chunks():
            chunk.restore()

    def round_into_models(self):
        """Copy the masters to the model's half params, rounded."""
        if self.chunks:
            with grad_enabled(False):
                for chunk in self.chunks:
                    if not chunk.is_stored:  # then the half params are rounded already
                        chunk.round_into_models()

    def finish_step(self):
        """Round the masters into the model. Before the first step every half param is compared with its master."""
        for chunk in self.chunks:
            chunk.is_new = False
        self.round_into_models()
        for chunk in self._chunks_to_store() if self.are_stored else ():
            chunk.store()

    # -- gradients -----------------------------------------------------------------------------------------------------

    def have_half_gradients(self):
        """Return whether any half param has a gradient that was not moved to its master."""
        for chunk in self.chunks:
            if tensor_lists.have_stored_gradients(chunk.models):
                return True
        return False

    def move_gradients(self, scaler, scale, may_stay=False):
        """Move half gradients to their masters, divided by ``scale``; each chunk is freed as soon as it has moved.

        Args:
            scaler: the ``LossScaler`` that divides and checks; None to move them as they are.
            scale: a float, or a tensor of shape ().
            may_stay: nobody needs the float32 gradients before the step; see ``RemainderChunk.move_gradients``.
        """
        unscale_ = None if scaler is None else functools.partial(scaler.unscale_, scale=scale)
        for chunk in self.chunks:
            chunk.move_gradients(unscale_, may_stay)

    def drop_gradients(self, with_half):
        """Set the masters' gradients to None; ``with_half``: also those that stayed half until the step.

        Other optimizers may step on those of shared params; they are dropped before a later pass adds to them.
        """
        for model, master in self._pairs.values():
            if self._session_masters.is_shared(model):
                self._session_masters.stepped_on.append(master)
                continue
            set_stored_gradient(master, None)
            if with_half:
                set_stored_gradient(model, None)

    def clear_half_gradients(self, set_to_none):
        """Set gradients of the half params to None, or to 0."""
        for chunk in self.chunks:
            chunk.clear_half_gradients(set_to_none)
