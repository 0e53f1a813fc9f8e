"""``OptimizerAdapter``, one per optimizer, stored as ``optimizer._amp_stash``: float32 master weights, unscaling.

While a session is open ``param_groups`` holds the masters. The gradient of a half param is moved to its master,
unscaled, when ``scale_loss`` exits. Only what every optimizer has is used (``param_groups``, ``state``, ``step``,
``zero_grad``), never its class. ``optimizers.step`` replaces the optimizer's methods.

One iteration (``with scale_loss(loss, optimizer) as scaled: scaled.backward()``, then ``optimizer.step()``):

    enter   float32 gradients of earlier passes are multiplied by the scale; half ones are moved to their masters
    body    backward adds scaled gradients
    exit    float32: divided by the scale in place; half: divided in float32 and added to the master's gradient
    step    skipped if one of them was inf or nan; otherwise the optimizer steps, and masters are rounded into the model
"""

import copy
import enum
from collections import OrderedDict

import torch

from .. import tensor_lists
from ..errors import AmpError
from ..loss_scaling.overflow import StepSkips
from ..loss_scaling.scaler import is_one, is_same
from ..patching import PatchStack
from .apex_names import ApexNames
from .master_pairs import MasterPairs, Pair
from .masters import add_gradients
from .untracked_gradients import are_cleared, are_replaced, marks_of

SLOT = "_amp_stash"


class Stage(enum.Enum):
    """The state of an optimizer within an iteration. Calls that it does not allow raise an error."""

    READY = "ready for a backward pass"
    SCALED = "holding gradients that are still scaled"
    DELAYED = "holding gradients of a pass with delay_unscale whose scale was 1"


class OptimizerAdapter(MasterPairs, ApexNames):
    """The masters, the gradients and the skipped steps of one optimizer.

    Args:
        optimizer: has ``param_groups``, ``state``, ``step`` and ``zero_grad``.
        dtypes: the session's ``DtypePair``.
        has_masters: whether half params get masters.
        originals: ``{id(param): (data, gradient)}`` from before the model was cast; they become the masters.
        callbacks: the ``SessionCallbacks``, what the adapter asks and tells its session.
    """

    def __init__(self, optimizer, dtypes, has_masters, originals, callbacks):
        self.optimizer = optimizer
        self.dtypes = dtypes
        self.has_masters = has_masters
        self.callbacks = callbacks
        self.stage = Stage.READY
        self.pending_scale, self._pending_loss = 1.0, None  # see ``leave_scaled``
        self.sets_to_none = True  # what the optimizer's own zero_grad does by default
        self.replaced = {}  # the optimizer's original methods, by name
        self.methods = PatchStack()  # restores them
        self.open_passes = []  # weak references to the open ``scale_loss`` blocks of this optimizer
        self.known_passes = callbacks.passes.ended  # when its half params were last known to have no gradients
        # Counts the passes that ``untracked_gradients`` has watched, up to its limit. There is no limit for optimizers
        # with masters that step on gradients of plain backward passes: nothing else distinguishes these gradients from
        # scaled gradients of another optimizer's backward pass.
        self.watched_passes = float("-inf") if has_masters else 0
        self.steps_plainly = False
        self.untracked_scale = None  # of another optimizer's backward pass, which left scaled gradients here
        self._untracked = []  # the marks of these gradients
        self.skips = StepSkips(optimizer, callbacks.step_skipped)
        self._set_aside = []  # (param, gradient)
        self._pairs = OrderedDict()  # id(master) -> Pair
        self._chunks = []  # the same pairs as ``Chunk`` lists, whose gradients are moved together
        self._has_begun = False  # the first backward pass
        self.make_new_masters(originals)

    # -- params and masters --------------------------------------------------------------------------------------------

    def unpaired_params(self):
        """Return the params that are their own masters."""
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        if not self._pairs:
            return params
        if all(map(self._pairs.__contains__, map(id, params))):  # the common case, faster than the loop below
            return []
        return [param for param in params if id(param) not in self._pairs]

    def leaf_params(self):
        """Return the params that backward accumulates gradients in: the model's half ones, and the own masters."""
        return [pair.model for pair in self._pairs.values()] + self.unpaired_params()

    def _unpaired_with_grad(self, seen):
        """Return the own masters that have a gradient and are not in ``seen``, and their gradients; add them to it."""
        params, grads = [], []
        for param in self.unpaired_params():
            grad = param.grad
            if grad is not None and id(param) not in seen:
                params.append(param)
                grads.append(grad)
        seen.update(map(id, params))
        return params, grads

    def has_state_to_update(self):
        """Return whether a pass or a step has more to do than plain torch: masters, scaled gradients, skipped steps."""
        is_ready = self.stage is not Stage.SCALED and self.untracked_scale is None
        return bool(self._pairs or self.open_passes) or not is_ready or self.skips.has_checks()

    # -- around a backward pass ----------------------------------------------------------------------------------------

    def open_blocks(self):
        """Return the open ``scale_loss`` blocks of this optimizer."""
        if not self.open_passes:
            return []
        return [block for block in [reference() for reference in list(self.open_passes)] if block is not None]

    def has_gradients_to_rescale(self):
        """Return whether ``before_backward`` has anything to do: earlier passes left gradients."""
        if self.stage is Stage.SCALED or self.untracked_scale is not None:
            return True
        for group in self.optimizer.param_groups:
            if tensor_lists.have_gradients(group["params"]):
                return True
        return self.has_half_gradients()

    def unscale_delayed(self, scaler, scale, seen, unscaled):
        """Unscale what passes with ``delay_unscale`` have left, unless it is of the loss and the scale of this pass.

        Args:
            scaler: the ``LossScaler`` of this pass.
            scale: its scale: a float, or a tensor of shape ().
            seen: ids of params whose gradients have this scale already, a set that grows.
            unscaled: ids of params whose gradients were unscaled here, a set that grows: other adapters may share them.

        Returns:
            ``(LossScaler, loss_id)`` of the loss whose gradients were unscaled; None if none were.
        """
        if self.stage is not Stage.SCALED:
            return None
        loss = self._pending_loss or (scaler, None)
        if loss[0] is scaler and is_same(scale, self.pending_scale):
            self._unpaired_with_grad(seen)
            return None
        self.after_backward(loss[0], self.pending_scale, unscaled)
        return loss

    def before_backward(self, scaler, scale, seen, are_local=False):
        """Bring gradients of earlier passes to the scale of this one, so that the sum has one scale.

        Args:
            scaler: the ``LossScaler`` of this pass.
            scale: its scale: a float, or a tensor of shape ().
            seen: ids of params treated so far, a set that grows: shared params are treated by the first adapter only.
            are_local: the gradients are not reduced yet, so they must stay in ``.grad``.
        """
        if self.stage is Stage.SCALED:
            return
        self.forget_untracked(are_cleared)
        self._move_to_masters(scaler, 1.0)
        is_skipped = self.skips.is_next_skipped()
        if is_one(scale) and not is_skipped:
            return
        held, _ = self._unpaired_with_grad(seen)
        # Half gradients could overflow when multiplied. Gradients of an earlier loss that did overflow would count as
        # an overflow of this loss too, and lower its scale. Both are set aside until ``after_backward``.
        high = self.dtypes.high
        aside = [
            param for param in held if is_skipped or (not are_local and tensor_lists.is_narrower(param.grad, high))
        ]
        ids = set(map(id, aside))
        tensor_lists.multiply_(tensor_lists.grouped([param.grad for param in held if id(param) not in ids]), scale)
        for param in aside:  # a copy, since a view's memory may be reused
            self._set_aside.append((param, param.grad.clone() if param.grad._is_view() else param.grad))
            param.grad = None

    def leave_untracked(self, scale):
        """End a pass whose ``scale_loss`` did not get this optimizer; it left gradients scaled by ``scale`` here."""
        self.untracked_scale, self._untracked = scale, marks_of([param.grad for param in self.leaf_params()])

    def forget_untracked(self, are_gone):
        """Note that no scaled gradients are left here if ``are_gone``, ``are_cleared`` or ``are_replaced``, says so."""
        if self.untracked_scale is not None:
            if are_gone(self._untracked, [param.grad for param in self.leaf_params()]):
                self.untracked_scale = None

    def leave_scaled(self, scale, loss=None):
        """End a pass with ``delay_unscale``: a later pass unscales the sum.

        Args:
            scale: the scale of its gradients: a float, or a tensor of shape ().
            loss: its ``(LossScaler, loss_id)``; None leaves the overflow check to the loss of the later pass.
        """
        self.stage = Stage.DELAYED if is_one(scale) else Stage.SCALED
        self.pending_scale, self._pending_loss = scale, loss

    def after_backward(self, scaler, scale, seen):
        """Unscale: float32 gradients in place, half ones into their masters. Arguments: see ``before_backward``."""
        if self._chunks:
            self._move_to_masters(scaler, scale)
        params, grads = self._unpaired_with_grad(seen)
        for index, grad in enumerate(grads):
            if grad.is_sparse and not grad.is_coalesced():
                grads[index] = params[index].grad = grad.coalesce()
        scaler.unscale_(tensor_lists.grouped(grads), scale)
        self._end_pass()

    def after_backward_by_client(self, scaler, post_backward):
        """Let a client's ``_post_amp_backward`` unscale; then free the half gradients, as if they had been moved."""
        scaler.unscale_by_optimizer(post_backward)
        for pair in self._pairs.values():
            pair.model.grad = None
        self._end_pass()

    def _end_pass(self):
        aside, self._set_aside = self._set_aside, []
        if aside:
            add_gradients(*zip(*aside))
        self.stage = Stage.READY
        self.known_passes = self.callbacks.passes.ended
        if not self.steps_plainly:
            self.watched_passes = max(self.watched_passes, 0)

    def move_plain_gradients(self):
        """Move half gradients of a pass that was not scaled to their masters."""
        with torch.no_grad():
            self._move_to_masters(None, 1.0)
        self.known_passes = self.callbacks.passes.ended
        if self.stage is Stage.DELAYED:
            self.stage = Stage.READY

    def _move_to_masters(self, scaler, scale):
        """Move half gradients to their masters, divided by ``scale``; each chunk is freed as soon as it has moved."""
        for chunk in self._chunks:
            chunk.move_gradients(lambda groups: scaler is None or scaler.unscale_(groups, scale))

    # -- around a step -------------------------------------------------------------------------------------------------

    def holds_scaled_gradients(self):
        """Return whether a pass with ``delay_unscale`` has not been unscaled yet."""
        return self.stage is Stage.SCALED

    def check_unscaled(self):
        """Raise, or warn, where a step would use gradients that are still scaled."""
        if self.stage is Stage.SCALED:
            raise AmpError(
                "optimizer.step() would use gradients that are still scaled by {:g}: the last amp.scale_loss had "
                "delay_unscale=True, or fully_shard did not reduce the gradients. Leave it out, and let them be "
                "reduced, in the last backward pass before step().".format(self.pending_scale)
            )
        if any([not is_one(block.scale) for block in self.open_blocks()]):
            self.callbacks.notices.stepped_within_block(self.optimizer)
        self.forget_untracked(are_replaced)
        if self.untracked_scale is not None:
            self.callbacks.notices.scaled_gradients_used(self)
            if not self.has_half_gradients():  # half gradients stay in the model's params, still scaled
                self.untracked_scale = None

    def finish_step(self, stepped):
        """Round the masters into the model if the optimizer ``stepped``, and free their gradients."""
        if stepped:
            self.mark_masters_synced()
            self.masters_to_models()
        for chunk in self._chunks:
            for master in chunk.masters:
                master.grad = None
        for observer in self.callbacks.observers:
            observer.after_step(self)

    def forget_gradients(self, set_to_none):
        """Do for the model's half params what ``zero_grad`` did for the masters; drop gradients that were set aside."""
        for pair in self._pairs.values():
            if set_to_none or pair.model.grad is None:
                pair.model.grad = None
            else:
                pair.model.grad.detach_().zero_()
        self._set_aside = []
        self.stage = Stage.READY
        self.untracked_scale = None
        self.known_passes = self.callbacks.passes.ended

    def __deepcopy__(self, memo):
        # Keys are ids, so the copy's dict is built from the copied pairs. No ``scale_loss`` block is open for a copy.
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        own = ("_pairs", "open_passes", "_pending_loss")
        vars(twin).update(copy.deepcopy({k: v for k, v in vars(self).items() if k not in own}, memo))
        pairs = [Pair(*copy.deepcopy(tuple(pair), memo)) for pair in self._pairs.values()]
        twin._pairs = OrderedDict((id(pair.master), pair) for pair in pairs)
        twin.open_passes, twin._pending_loss = [], self._pending_loss
        self.callbacks.writes.watch([param for pair in pairs for param in pair])
        return twin
