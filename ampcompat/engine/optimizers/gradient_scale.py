"""``HeldGradients``: what the gradients of an optimizer's params are multiplied by, and everything that changes it.

Backward accumulates into ``.grad`` of the model's params. Where these are half, true gradients are kept at their
float32 masters until ``zero_grad``, and ``.grad`` of the half param shows them (``grad_of_half_params``).

    state            the gradients in ``.grad`` of the model's params
    Unscaled         true gradients, or none
    Scaled           multiplied by the scale of an earlier pass (``delay_unscale``, or not reduced yet)
    ScaledByOther    some are multiplied by the scale of a pass whose ``scale_loss`` did not get this optimizer

    event                       Unscaled             Scaled                      ScaledByOther
    enter a block               to the block's scale stays if loss and scale     as Unscaled (and that, if the script
                                                     are the same, else unscaled cleared them)
    leave it                    Unscaled             Unscaled                    stays
    leave it, delayed           Scaled               Scaled                      Scaled
    another optimizer's pass    ScaledByOther, if    stays                       ScaledByOther
    changes a gradient
    step                        plain gradients move an error (none at scale 1)  a notice; half ones are not stepped on
                                to the masters
    zero_grad                   Unscaled             Unscaled                    Unscaled

A scale of 1 is none: gradients that are Scaled by it are true ones. Where masters are stored between steps
(``remainder_master``), true half gradients stay in ``.grad`` until the step, or until somebody asks for float32 ones.
"""

import operator
from threading import get_ident
from typing import Any, NamedTuple

from ...errors import AmpError
from ...support import tensor_lists
from ...support.script_frames import script_line
from ...support.tensor_lists import add_gradients, set_stored_gradient, stored_gradient
from ...support.torch_compat import thread_context
from ...support.torch_compat.thread_blocks import grad_enabled
from ..loss_scaling.loss_scaler import is_one, is_same
from ..masters.grad_of_half_params import are_cleared, are_replaced, mark_of

_VERSION = operator.attrgetter("_version")


class Unscaled(NamedTuple):
    """True gradients, or none."""


class NumberedLoss(NamedTuple):
    """A loss: its ``LossScaler`` and the ``loss_id`` that ``amp.scale_loss`` got; None for a loss without a block."""

    scaler: Any
    loss_id: Any


class Scaled(NamedTuple):
    """Gradients multiplied by ``scale``: a float, or a tensor of shape ().

    ``loss`` is the ``NumberedLoss`` of the pass; None leaves the overflow check to the loss of a later pass.
    """

    scale: Any
    loss: Any


class ScaledByOther(NamedTuple):
    """Some gradients multiplied by ``scale``, by a pass on other optimizers; ``marks`` tells them from later ones."""

    scale: Any
    marks: list


class HeldGradients:
    """The gradients of one optimizer.

    Args:
        record: its ``OptimizerRecord``.
    """

    def __init__(self, record):
        self._record, self._masters = record, record.masters
        self._masters.show_gradients = self.widen
        self.state = Unscaled()
        self._aside, self._with_aside = [], record.session.with_aside  # (param, gradient): what a block adds at its end
        self._shown = record.masters.shown
        self._thread = get_ident()  # the thread that trains the params

    def are_scaled(self):
        """Return whether gradients in ``.grad`` are multiplied by a scale other than 1."""
        return self.are_delayed() or isinstance(self.state, ScaledByOther)

    def are_delayed(self):
        """Return whether a pass with ``delay_unscale`` has not been unscaled yet."""
        return isinstance(self.state, Scaled) and not is_one(self.state.scale)

    # -- around a pass of this optimizer -------------------------------------------------------------------------------

    def begin(self):
        """Begin a pass: refresh new masters, and take what the script has changed in ``.grad``."""
        self._thread = get_ident()
        self._record.follow_groups()
        if self._masters.chunks:
            if self._record.session.masters.stepped_on:
                self._record.session.masters.drop_gradients()
            self._masters.begin()
            self.take_changes()

    def has_gradients_to_rescale(self):
        """Return whether ``enter`` has anything to do: earlier passes left gradients."""
        if self.state and self.are_scaled() or tensor_lists.have_stored_gradients(self._record.params):
            return True
        return bool(self._masters.chunks) and self._masters.have_half_gradients()

    def unscale_delayed(self, scaler, scale, seen, unscaled):
        """Unscale what passes with ``delay_unscale`` have left, unless it is of the loss and the scale of this pass.

        Args:
            scaler: the ``LossScaler`` of this pass.
            scale: its scale: a float, or a tensor of shape ().
            seen: ids of params whose gradients have this scale already, a set that grows.
            unscaled: ids of params whose gradients were unscaled here, a set that grows: other optimizers may share
                them.

        Returns:
            The ``NumberedLoss`` whose gradients were unscaled; None if none were.
        """
        if not self.are_delayed():
            return None
        delayed_scale, loss = self.state
        loss = loss or NumberedLoss(scaler, None)
        if loss.scaler is scaler and is_same(scale, delayed_scale):
            self._own_with_gradient(seen)
            return None
        self.leave(loss.scaler, delayed_scale, unscaled)
        return loss

    def enter(self, scaler, scale, seen, are_local=False):
        """Bring gradients of earlier passes to the scale of this one, so that the sum has one scale.

        Args:
            scaler: the ``LossScaler`` of this pass.
            scale: its scale: a float, or a tensor of shape ().
            seen: ids of params treated so far, a set that grows: shared params are treated by the first optimizer only.
            are_local: the gradients are not reduced yet, so they must stay in ``.grad``.
        """
        if self.are_delayed():
            return
        self._forget_others(are_cleared)
        self._masters.move_gradients(None, 1.0)
        is_skipped = self._record.skips.is_next_skipped()
        if is_one(scale) and not is_skipped:
            return
        held, grads = self._own_with_gradient(seen)
        # Set aside until ``leave``: half gradients, which could overflow when multiplied, and those of an earlier loss
        # that did overflow, which would count as an overflow of this loss too.
        high = self._masters.dtype
        are_narrow = [not are_local and tensor_lists.is_narrower(grad, high) for grad in grads]
        aside = [param for param, is_narrow in zip(held, are_narrow) if is_skipped or is_narrow]
        rest = [grad for grad, is_narrow in zip(grads, are_narrow) if not (is_skipped or is_narrow)]
        tensor_lists.multiply_(tensor_lists.grouped(rest), scale)
        for param in aside:  # a copy, since a view's memory may be reused
            grad = param.grad.clone() if param.grad._is_view() else param.grad
            self._aside.append((param, grad))
            self._with_aside.add(self)
            param.grad = None

    def leave(self, scaler, scale, seen):
        """Unscale: float32 gradients in place, half ones into their masters. Arguments: see ``enter``."""
        if self._masters.chunks:
            if self._shown:
                scaler.unscale_(tensor_lists.grouped(self._shown.take_changes(self._masters.pairs())), 1.0)
            is_left = self._masters.are_stored and scaler.leaves_gradients_alone(scale)
            self._masters.move_gradients(scaler, scale, may_stay=is_left)
        params, grads = self._own_with_gradient(seen)
        if params:
            for index, grad in enumerate(grads):
                if grad.is_sparse and not grad.is_coalesced():
                    grads[index] = params[index].grad = tensor_lists.coalesced(grad)
            scaler.unscale_(tensor_lists.grouped(grads), scale)
        if self._aside:  # other optimizers that share them must not unscale
            seen.update([id(param) for param, _ in self._aside])
        self._end_pass()

    def leave_by_client(self, scaler, post_backward):
        """Let a client's ``_post_amp_backward`` unscale; then free the half gradients, as if they had been moved."""
        self.state = Scaled(scaler.loss_scale(), None)
        scaler.unscale_by_optimizer(post_backward)
        for pair in self._masters.pairs():
            set_stored_gradient(pair.model, None)
        self._end_pass()

    def leave_scaled(self, scale, loss=None):
        """End a pass with ``delay_unscale``: a later pass unscales the sum. Arguments: see ``Scaled``."""
        self.state = Scaled(scale, loss)
        self.follow()

    def _end_pass(self):
        if self._aside:
            aside, self._aside = self._aside, []
            self._with_aside.discard(self)
            add_gradients(*zip(*aside))
        if isinstance(self.state, Scaled):
            self.state = Unscaled()
        if self._shown:
            self.follow()

    def _own_with_gradient(self, seen):
        """Return the own masters that have a gradient and are not in ``seen``, and their gradients; add them to it."""
        params, grads = [], []
        for param in self._masters.unpaired_params():
            grad = param.grad
            if grad is not None and id(param) not in seen:
                params.append(param)
                grads.append(grad)
        seen.update(map(id, params))
        return params, grads

    # -- passes of other optimizers ------------------------------------------------------------------------------------

    def before_pass_of_others(self):
        """Return what ``end_pass_of_others`` compares with; None if a pass in this thread cannot reach these gradients.

        The thread that trains the params may be writing them meanwhile. Every scaled pass asks this of all optimizers
        that it was not given, so there is no Python call per param: gradients are held, not marked.
        """
        if self._record.open_blocks or self._thread != get_ident():
            return None
        self._record.follow_groups()
        self.take_changes()
        params = self._record.leaf_params() if self._masters.chunks else self._record.params
        gradients = list(map(stored_gradient, params))
        held = [gradient for gradient in gradients if gradient is not None]
        return params, gradients, held, list(map(_VERSION, held))

    def end_pass_of_others(self, before, scale, unscaled):
        """End a scaled pass whose ``scale_loss`` did not get this optimizer.

        Args:
            unscaled: records whose gradients the pass unscales; this optimizer may have the same params.
        """
        params, earlier, held, versions = before
        now = list(map(stored_gradient, params))
        if (all(map(operator.is_, now, earlier)) and list(map(_VERSION, held)) == versions) or self.are_delayed():
            return
        unchanged = {id(gradient) for gradient, version in zip(held, versions) if gradient._version == version}
        theirs = {id(param) for record in unscaled for param in record.leaf_params()}
        changed = [
            None
            if gradient is None or id(param) in theirs or (gradient is other and id(gradient) in unchanged)
            else mark_of(gradient)
            for param, gradient, other in zip(params, now, earlier)
        ]
        if any([mark is not None for mark in changed]):
            self.state = ScaledByOther(scale, changed)

    def _forget_others(self, are_gone):
        """Note that no scaled gradients are left here if ``are_gone``, ``are_cleared`` or ``are_replaced``, says so."""
        if isinstance(self.state, ScaledByOther):
            if are_gone(self.state.marks, [mark_of(stored_gradient(each)) for each in self._record.leaf_params()]):
                self.state = Unscaled()

    # -- plain backward passes, and what the script does to gradients --------------------------------------------------

    def prepare_step(self):
        """Refresh the masters, take what the script has changed in ``.grad``, and move plain gradients to the masters.

        A notice says so where gradients are scaled by a pass of others, or a block is still open.

        Raises:
            AmpError: a hook steps within a scaled backward pass, a pass with ``delay_unscale`` was not unscaled, or
                the half params hold gradients of a ``scale_loss`` block that is still open.
        """
        if self._record.open_blocks and thread_context.is_in_backward():
            self._check_unscaled_in_backward()
        self._thread = get_ident()
        self._record.follow_groups()
        if self._masters.chunks:
            self._masters.refresh()
            if not (self.state and self.are_delayed()) and self._masters.have_half_gradients():
                if self._is_in_scaled_block():
                    raise AmpError(
                        "optimizer.step() was called inside of a with amp.scale_loss(...) block, where gradients are "
                        "still scaled. Call it after the block."
                    )
                self._move_plain_gradients(may_stay=True)
            self.take_changes()
        if self.state or self._record.open_blocks:
            self._check_unscaled()

    def _check_unscaled_in_backward(self):
        scales = [block.scale for block in self._record.open_blocks if not is_one(block.scale)]
        if scales:
            raise AmpError(
                "{}:{}: {}.step() was called within a backward pass, where gradients are still multiplied by the loss "
                "scale, {:g}, and not checked for overflow. Use a loss scale of 1 (loss_scale=1.0, as at O4 and O5), "
                "or step after the backward pass.".format(
                    *script_line(), type(self._record.optimizer).__name__, float(scales[-1])
                )
            )

    def _check_unscaled(self):
        notices, optimizer = self._record.configuration.notices, self._record.optimizer
        if self.are_delayed():
            raise AmpError(
                f"optimizer.step() would use gradients that are still scaled by {self.state.scale:g}: the last "
                "amp.scale_loss had delay_unscale=True, or fully_shard did not reduce the gradients. Leave it out, "
                "and let them be reduced, in the last backward pass before step()."
            )
        if self._is_in_scaled_block():
            notices.stepped_within_block(optimizer)
        self._forget_others(are_replaced)
        if isinstance(self.state, ScaledByOther):
            notices.scaled_gradients_used(optimizer, self.state.scale)
            if not self._masters.have_half_gradients():  # half gradients stay in the model's params, still scaled
                self.state = Unscaled()

    def prepare_clipping(self):
        """Make the gradients of the masters what a step would use; within a block they are left alone."""
        self._masters.refresh(new_only=True)
        self.widen()
        self.take_changes()

    def widen(self):
        """Make gradients that stayed half those of their masters."""
        if not (self.are_delayed() or self._is_in_scaled_block()) and self._masters.have_half_gradients():
            self._move_plain_gradients()

    def _is_in_scaled_block(self):
        return any([not is_one(block.scale) for block in self._record.open_blocks])

    def _move_plain_gradients(self, may_stay=False):
        """Move half gradients to their masters, unless they are scaled gradients of another optimizer's pass."""
        self._forget_others(are_replaced)
        if isinstance(self.state, ScaledByOther):
            return
        self._record.session.masters.drop_gradients()
        self.take_changes()
        with grad_enabled(False):
            self._masters.move_gradients(None, 1.0, may_stay)
        self.follow()
        scalers = self._record.configuration.scalers
        if isinstance(self.state, Unscaled) and not any([scaler.is_static_one() for scaler in scalers]):
            self._record.configuration.notices.unscaled_gradients_used(self._record.optimizer)
        self.state = Unscaled()

    def shown(self, model, master):
        """Return what ``.grad`` of a half param shows."""
        stored, scale = stored_gradient(model), self._scale_in_pass(model)
        if stored is not None and (scale is not None or isinstance(self.state, ScaledByOther)):
            return stored
        if stored is not None and stored_gradient(master) is not None:  # of a plain pass after one that is unscaled
            self._move_plain_gradients()
        return self._shown.show(model, master, 1.0 if scale is None else scale)

    def _scale_in_pass(self, model):
        """Return the scale of what backward leaves in ``.grad``, in a block or in a pass that is delayed; or None."""
        for record in self._record.session.masters.records_of(model):
            if record.gradients.are_delayed():
                return record.gradients.state.scale
            for block in record.open_blocks:
                return block.scale
        return None

    def was_set(self, model, master, before):
        """Note that the script has assigned to ``.grad`` of a half param, where ``before`` was stored."""
        may_stay = self._masters.are_stored and stored_gradient(master) is None
        self._shown.was_set(model, master, before, stays=may_stay or self._scale_in_pass(model) is not None)

    def take_changes(self):
        """Give the masters what the script has changed in ``.grad`` of half params."""
        if self._shown:
            self._shown.take_changes(self._masters.pairs())

    # -- around a step -------------------------------------------------------------------------------------------------

    def are_half_stepped_on(self):
        """Return whether gradients that stayed half are true ones, which a step uses."""
        return not isinstance(self.state, ScaledByOther)

    def clear(self, set_to_none):
        """Do for half params what ``zero_grad`` does for their masters; drop gradients that were set aside."""
        if self._masters.chunks:
            self._masters.clear_half_gradients(set_to_none)
        if self._with_aside:
            cleared = set(map(id, self._masters.unpaired_params()))
            for holder in self._with_aside:
                kept = [each for each in holder._aside if id(each[0]) not in cleared]
                if len(kept) < len(holder._aside):  # else it may be another thread's, whose pass ends now
                    holder._aside = kept
        for model, _ in self._shown.of(self._masters.pairs()) if set_to_none and self._shown else ():
            del self._shown[id(model)]
        self.state = Unscaled()

    def follow(self):
        """Show what the masters have now in the gradients of half params that the script has read."""
        if self._shown:
            self._shown.follow(self._masters.pairs())

    def continue_from(self, original):
        """Take over the scale of delayed passes: these gradients are deep copies of the ``original`` ones."""
        if isinstance(original.state, Scaled):
            self.state = original.state
