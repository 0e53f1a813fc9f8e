"""The half params of an optimizer and their float32 masters: creation, synchronization and removal."""

from typing import NamedTuple

import torch

from .. import tensor_lists
from ..errors import AmpValueError
from ..loss_scaling.process_group import groups_of
from . import zero_redundancy
from .gradient_buffers import chunks_of
from .masters import Snapshot, kept_where_equal, make_master, recast


class Pair(NamedTuple):
    """A half param of the model and its float32 master."""

    model: torch.nn.Parameter
    master: torch.nn.Parameter


class MasterPairs:
    """Mixed into ``OptimizerAdapter``, which makes the attributes."""

    def make_masters_of_groups(self, groups):
        """Replace the half params of new param groups by masters.

        Raises:
            AmpValueError: a param is in the optimizer already.
        """
        known = {id(pair.model) for pair in self._pairs.values()}
        if any(id(param) in known for group in groups for param in group["params"]):
            raise AmpValueError("some parameters of this group are in the optimizer already: give each one once.")
        self._replace_params(groups, {})

    def make_new_masters(self, originals):
        """Make masters of half params that have none, also those that a later ``initialize`` has cast to half.

        ``rollback`` undoes it.

        Args:
            originals: ``{id(param): (data, gradient)}`` from before the model was cast.
        """
        self._before = Snapshot(self.optimizer), self._pairs.copy(), list(self._chunks)
        self._replace_params(self.optimizer.param_groups, originals)

    def _replace_params(self, groups, originals):
        """Replace half params by masters; move their optimizer state to the masters, in float32."""
        state, pairs = self.optimizer.state, []
        for params in [group["params"] for group in groups]:
            for index, param in enumerate(params):
                if self.has_masters and tensor_lists.is_narrower(param, self.dtypes.high):
                    other = self.callbacks.find_master(param)
                    if other is not None:  # perhaps of an optimizer that this one replaces: keep its float32 value
                        originals[id(param)] = (kept_where_equal(other.detach(), param.detach()), param.grad)
                    master = make_master(param, originals, self.dtypes.high)
                    pairs.append(Pair(param, master))
                    params[index] = master
                    if param in state:
                        state[master] = state.pop(param)
                    recast(state.get(master), master.shape, master.dtype)
                elif id(param) in originals:
                    recast(state.get(param), param.shape, param.dtype)
        self._pairs.update((id(pair.master), pair) for pair in pairs)
        zero_redundancy.replace_params(self.optimizer, dict(pairs))
        self._chunks += chunks_of(pairs)
        self.callbacks.writes.watch([param for pair in pairs for param in pair])
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        self.process_groups = groups_of(params)  # ranks of these groups hold parts of the same gradients

    def commit(self):
        """Drop what ``rollback`` needs: ``initialize`` has succeeded."""
        self._before = None

    def rollback(self):
        """Restore the optimizer as it was: ``initialize`` has failed."""
        made = {pair.master: pair.model for pair in self._pairs.values()}
        snapshot, self._pairs, self._chunks = self._before
        for pair in self._pairs.values():
            del made[pair.master]
        snapshot.restore(self.optimizer)
        zero_redundancy.replace_params(self.optimizer, made)

    def release(self):
        """Put the model's params back into the optimizer, with the masters' values. The state stays, in float32."""
        self.refresh_masters()
        state = self.optimizer.state
        for group in self.optimizer.param_groups:
            for index, param in enumerate(group["params"]):
                recast(state.get(param), param.shape, self.dtypes.high)
                pair = self._pairs.get(id(param))
                if pair is not None:
                    group["params"][index] = pair.model
                    if param in state:
                        state[pair.model] = state.pop(param)
        zero_redundancy.replace_params(self.optimizer, {master: model for model, master in self._pairs.values()})
        for model, master in self._pairs.values():
            model.grad = None
            model.data = master.data
            model.grad = master.grad
        self._pairs.clear()
        self._chunks = []

    def refresh_masters(self, new_only=False):
        """Copy to the masters what a script has written to their half params: see ``Chunk.refresh``.

        Args:
            new_only: only masters that have not been stepped on. Others are refreshed in ``step``: weights that are
                replaced temporarily and restored before it (an EMA for evaluation, a perturbation for one backward
                pass) leave the low bits of the masters alone.
        """
        self._has_begun = True
        for chunk in self._chunks:
            if chunk.is_new or not new_only:
                chunk.refresh(self.callbacks.writes, chunk.is_new and self.callbacks.are_weights_shared_by_hand())

    def begin(self):
        """Refresh the masters if this is the first backward pass: a script has initialized its weights by then."""
        if not self._has_begun:
            self.refresh_masters()

    def pairs(self):
        """Return the (model, master) pairs."""
        return list(self._pairs.values())

    def pairs_by_group(self):
        """Return the pairs, a list per param group."""
        groups = self.optimizer.param_groups
        return [[self._pairs[id(param)] for param in group["params"] if id(param) in self._pairs] for group in groups]

    def masters_to_models(self):
        """Copy the masters to the model's half params, rounded."""
        if self._chunks:
            with torch.no_grad():
                for chunk in self._chunks:
                    chunk.round_into_models(self.callbacks.writes)

    def mark_masters_synced(self):
        """Mark the first step as done. Before it every half param is compared with its master."""
        for chunk in self._chunks:
            chunk.is_new = False

    def has_half_gradients(self):
        """Return whether any half param has a gradient that was not moved to its master."""
        for chunk in self._chunks:
            if tensor_lists.have_gradients(chunk.models):
                return True
        return False
