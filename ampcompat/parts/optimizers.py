"""One adapter per optimizer: float32 masters, and gradients in true units.

Owns: ``OptimizerAdapter``, which hangs on the optimizer as ``_amp_stash``: its (model, master) pairs, what waits to be
unscaled, what the next step must heed. ``parts.steps`` puts it in force.
Must not touch: the scale; torch functions; anything but the capabilities that every optimizer has (``param_groups``,
``state``, ``step``, ``zero_grad``). It never asks for an optimizer's class.
The surprise: while a session is open ``param_groups`` holds the masters, and a half param's gradient lives on its
master: it moves there, unscaled, when ``scale_loss`` exits.

One iteration (``with scale_loss(loss, optimizer) as scaled: scaled.backward()``, then ``optimizer.step()``):

    enter   float32 gradients of earlier passes are multiplied by the scale; half ones go to their masters
    body    backward adds scaled gradients
    exit    float32: divided by the scale in place; half: divided in float32 and added to the master's gradient
    step    skipped if one of them was inf or nan; otherwise the optimizer steps, and masters are rounded into the model
"""

import copy
import functools
from collections import OrderedDict
from typing import NamedTuple

import torch

from ..errors import AmpError, AmpValueError
from . import tensors
from .chunks import chunks_of
from .links import Links, Stage
from .masters import Snapshot, add_gradients, make_master, recast
from .scaler import is_one, is_same
from .skips import Skips
from .stash_names import StashNames

SLOT = "_amp_stash"


class Pair(NamedTuple):
    """A half param of the model and its float32 master."""

    model: torch.nn.Parameter
    master: torch.nn.Parameter


class OptimizerAdapter(StashNames):
    """What amp knows of one optimizer.

    Args:
        optimizer: has ``param_groups``, ``state``, ``step`` and ``zero_grad``.
        dtypes: the session's ``DtypePair``.
        has_masters: whether half params get masters.
        originals: ``{id(param): (data, gradient)}`` from before the model was cast; they become the masters.
        links: the ``Links`` to the session.
    """

    def __init__(self, optimizer, dtypes, has_masters, originals, links):
        self.optimizer = optimizer
        self.dtypes = dtypes
        self.has_masters = has_masters
        self.links = links
        self.stage = Stage.READY
        self.pending_scale = 1.0
        self.sets_to_none = True  # what the optimizer's own zero_grad does by default
        self.replaced = {}  # the optimizer's methods as they were, by name
        self._pairs = OrderedDict()  # id(master) -> Pair
        self._chunks = []  # the same as Chunks, whose gradients move together
        self.watched_passes = 0  # see parts.bystanders
        self.foreign_scale = None  # of a pass that was not its own and that left gradients here
        self.skips = Skips(optimizer)
        self._stashed = []  # (param, gradient)
        self._before = Snapshot(optimizer)
        for group in optimizer.param_groups:
            self.adopt(group, originals)

    # -- params and masters --------------------------------------------------------------------------------------------

    def adopt(self, group, originals=()):
        """Replace the half params of a group by masters; re-key and widen the state that they already have."""
        state = self.optimizer.state
        params = group["params"]
        known = {id(pair.model) for pair in self._pairs.values()}
        if any(id(param) in known for param in params):
            raise AmpValueError("some parameters of this group are in the optimizer already: give each one once.")
        for index, param in enumerate(params):
            if self.has_masters and tensors.is_narrower(param, self.dtypes.high):
                master = make_master(param, originals, self.dtypes.high)
                self._pairs[id(master)] = Pair(param, master)
                params[index] = master
                if param in state:
                    state[master] = state.pop(param)
                recast(state.get(master), master.shape, master.dtype)
            elif id(param) in originals:
                recast(state.get(param), param.shape, param.dtype)
        self._chunks = chunks_of(self._pairs.values())

    def settle_in(self):
        """Stop being able to ``abandon``: ``initialize`` has succeeded."""
        self._before = None

    def abandon(self):
        """Leave the optimizer exactly as it was: ``initialize`` has failed."""
        self._before.restore(self.optimizer)
        self._pairs.clear()
        self._chunks = []

    def release(self):
        """Give the optimizer its model's params back, with the masters' values; the state stays, in float32."""
        state = self.optimizer.state
        for group in self.optimizer.param_groups:
            for index, param in enumerate(group["params"]):
                recast(state.get(param), param.shape, self.dtypes.high)
                pair = self._pairs.get(id(param))
                if pair is not None:
                    group["params"][index] = pair.model
                    if param in state:
                        state[pair.model] = state.pop(param)
        for model, master in self._pairs.values():
            model.grad = None
            model.data = master.data
            model.grad = master.grad
        self._pairs.clear()
        self._chunks = []

    def pairs(self):
        """Return the (model, master) pairs."""
        return list(self._pairs.values())

    def pairs_by_group(self):
        """Return the pairs, a list per param group."""
        groups = self.optimizer.param_groups
        return [[self._pairs[id(param)] for param in group["params"] if id(param) in self._pairs] for group in groups]

    def own_masters(self):
        """Return the params that are their own masters."""
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        if not self._pairs:
            return params
        if len(self._pairs) == len(params):
            return []
        return [param for param in params if id(param) not in self._pairs]

    def reached(self):
        """Return the params that a backward pass leaves gradients in: the model's half ones, and the own masters."""
        return [pair.model for pair in self._pairs.values()] + self.own_masters()

    def _own_with_grad(self, seen):
        """Return the own masters that have a gradient and that no other adapter of this pass has ``seen``."""
        own = [param for param in self.own_masters() if param.grad is not None]
        if seen:
            own = [param for param in own if id(param) not in seen]
        seen.update(map(id, own))
        return own

    # -- around a backward pass ----------------------------------------------------------------------------------------

    def has_to_make_room(self):
        """Return whether ``before_backward`` has anything to do: earlier passes left something."""
        if self.stage is Stage.SCALED or self.foreign_scale is not None:
            return True
        lists = [group["params"] for group in self.optimizer.param_groups] + [chunk.models for chunk in self._chunks]
        for params in lists:
            for param in params:
                if param.grad is not None:
                    return True
        return False

    def before_backward(self, scaler, scale, seen, are_local=False):
        """Make room: what earlier passes left and the new, scaled gradients will add up to one multiple of the truth.

        Args:
            scaler: the ``LossScaler`` of this pass.
            scale: its scale: a float, or a tensor of shape ().
            seen: a set of ids of params that optimizers share, so that the first adapter alone treats them; grows.
            are_local: the gradients are not reduced yet, so they must stay in ``.grad``.
        """
        if self.stage is Stage.SCALED:
            if is_same(scale, self.pending_scale):
                return
            self.after_backward(scaler, self.pending_scale, set())
        if self.foreign_scale is not None and all(param.grad is None for param in self.reached()):
            self.foreign_scale = None
        self._move_to_masters(scaler, 1.0)
        doomed = self.skips.are_coming()
        if is_one(scale) and not doomed:
            return
        held = self._own_with_grad(seen)
        # Half gradients could overflow when multiplied, and those of an earlier loss that did overflow would condemn this
        # loss's scale too: they wait elsewhere.
        high = self.dtypes.high
        aside = [param for param in held if doomed or (not are_local and tensors.is_narrower(param.grad, high))]
        ids = set(map(id, aside))
        tensors.multiply_(tensors.grouped([param.grad for param in held if id(param) not in ids]), scale)
        for param in aside:  # a copy, since a view's memory may be reused
            self._stashed.append((param, param.grad.clone() if param.grad._is_view() else param.grad))
            param.grad = None

    def leave_scaled(self, scale):
        """End a pass with ``delay_unscale``: a later one will unscale the sum."""
        if not is_one(scale):
            self.stage, self.pending_scale = Stage.SCALED, scale

    def after_backward(self, scaler, scale, seen):
        """Unscale: float32 gradients in place, half ones into their masters. Arguments as in ``before_backward``."""
        self._move_to_masters(scaler, scale)
        grads = []
        for param in self._own_with_grad(seen):
            grad = param.grad
            if grad.is_sparse and not grad.is_coalesced():
                grad = param.grad = grad.coalesce()
            grads.append(grad)
        scaler.unscale_(tensors.grouped(grads), scale)
        for param, grad in self._stashed:
            param.grad = grad if param.grad is None else param.grad.add_(grad)
        self._stashed = []
        self.stage = Stage.READY

    def _move_to_masters(self, scaler, scale):
        """Move half gradients to their masters, divided by ``scale``; each chunk is freed as soon as it has moved."""
        for chunk in self._chunks:
            taken = chunk.take_gradients()
            if taken is not None:
                masters, copies, groups = taken
                del taken
                scaler.unscale_(groups, scale)
                add_gradients(masters, copies)

    # -- around a step -------------------------------------------------------------------------------------------------

    def heed(self, verdict, loss_id, scaler):
        """Skip the next step if ``verdict`` says so."""
        verdict.tell(functools.partial(self.links.on_skip, loss_id, scaler))
        self.skips.heed(verdict, scaler)

    def holds_scaled_gradients(self):
        """Return whether a pass with ``delay_unscale`` has not been unscaled yet."""
        return self.stage is Stage.SCALED

    def check_unscaled(self):
        """Raise, or warn, where a step would use gradients that are still scaled."""
        if self.stage is Stage.SCALED:
            raise AmpError(
                "optimizer.step() would use gradients that are still scaled by {:g}: the last amp.scale_loss had "
                "delay_unscale=True. Leave it out in the last backward pass before step().".format(self.pending_scale)
            )
        if self.foreign_scale is not None:
            self.links.on_foreign(self)
            self.foreign_scale = None

    def finish_step(self, stepped):
        """Round the masters into the model if the optimizer ``stepped``, and free their gradients."""
        if stepped:
            self.masters_to_models()
        for chunk in self._chunks:
            for master in chunk.masters:
                master.grad = None
        for observer in self.links.observers:
            observer.after_step(self)

    def masters_to_models(self):
        """Round the masters into the model's half params."""
        if self._chunks:
            with torch.no_grad():
                for chunk in self._chunks:
                    tensors.copy_(chunk.models, chunk.masters)

    def forget_gradients(self, set_to_none):
        """Do for the model's half params what ``zero_grad`` did for the masters, and drop what was waiting."""
        for pair in self._pairs.values():
            if set_to_none or pair.model.grad is None:
                pair.model.grad = None
            else:
                pair.model.grad.detach_().zero_()
        self._stashed = []
        self.stage = Stage.READY
        self.foreign_scale = None

    def __deepcopy__(self, memo):
        # Keys are identities, so the copy's table is built anew from the copied pairs.
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        vars(twin).update(copy.deepcopy({k: v for k, v in vars(self).items() if k != "_pairs"}, memo))
        pairs = [Pair(*copy.deepcopy(tuple(pair), memo)) for pair in self._pairs.values()]
        twin._pairs = OrderedDict((id(pair.master), pair) for pair in pairs)
        return twin
