"""``BackwardPass``, the context manager of one ``scale_loss`` block."""

import torch

from ..errors import AmpError
from ..loss_scaling.overflow import Judgement
from ..loss_scaling.scaler import is_one, is_same
from ..optimizers.untracked_gradients import note_pass
from ..tensor_lists import is_narrower

#: For ``delay_unscale``: delay it only if a sum of scaled gradients is as exact as a sum of unscaled ones, that is, not
#: with half gradients. The overflow check is delayed in any case.
WHERE_EQUAL = "where equal"


class BackwardPass:
    """A context manager that yields the scaled loss.

    Blocks may be nested on one optimizer if they share a loss scaler. Its gradients are unscaled and checked for
    overflow when the last of them ends, whatever the order of the backward passes in them.

    If the body raises, gradients are unscaled, but not checked. Nor is there a check after a pass that
    DistributedDataParallel did not reduce, since ranks would differ: the next pass that is reduced, or the step, checks
    both.

    Args:
        loss: a tensor.
        high: the dtype in which the loss is scaled.
        scaler: the ``LossScaler`` of this loss.
        loss_id: its number.
        adapters: of the optimizers whose params the pass reaches.
        others: adapters of other optimizers, to note whether the pass leaves scaled gradients in their params.
        casts: the ``ProcessCasts``.
        replicas: the ``Replicas``.
        observers: the ``Observer`` objects to call.
        delay_unscale: see ``amp.scale_loss``; or ``WHERE_EQUAL``.
        delay_overflow_check: see ``amp.scale_loss``.
    """

    def __init__(
        self,
        loss,
        high,
        scaler,
        loss_id,
        adapters,
        others,
        casts,
        replicas,
        observers,
        delay_unscale,
        delay_overflow_check,
    ):
        self.loss = loss
        self.high = high
        self.scaler = scaler
        self.loss_id = loss_id
        self.adapters = adapters
        self.others = others
        self.casts = casts
        self.replicas = replicas
        self.observers = observers
        self.delay_unscale = delay_unscale
        self.delay_overflow_check = delay_overflow_check
        if delay_unscale == WHERE_EQUAL:
            self.delay_unscale = not _leaves_half_gradients(adapters, high)
            self.delay_overflow_check = True
        self.scale = None
        self.verdict = None

    def __enter__(self):
        # Forward is over. Autograd holds the casts of weights that it needs, and frees them one by one during backward,
        # unless the cache holds them too.
        self.casts.backend.clear_cache()
        self.scale = self._scale_within(self._check_nesting())
        for observer in self.observers:
            observer.before_backward(self)
        outermost = [adapter for adapter in self.adapters if not adapter.open_passes]
        for adapter in outermost:
            adapter.begin()
        if any([adapter.has_to_make_room() for adapter in outermost]):
            with self.casts.paused(), torch.no_grad():
                seen, are_local = set(), self.replicas.have_left(outermost)
                for adapter in outermost:
                    if adapter.holds_scaled_gradients() and not is_same(self.scale, adapter.pending_scale):
                        self.replicas.note_moved([adapter])
                    adapter.before_backward(self.scaler, self.scale, seen, are_local)
        loss = self.loss if self.loss.dtype is self.high else self.loss.to(self.high)
        scaled_loss = loss if is_one(self.scale) else loss * _beside(self.scale, loss)
        for adapter in self.adapters:
            adapter.open_passes.add(self)
        return scaled_loss

    def _check_nesting(self):
        """Return the blocks around this one; raise if gradients of two scales would be added up."""
        scale = self.scaler.scale_now()
        around = {block for adapter in self.adapters for block in adapter.open_passes}
        for block in around:
            if block.scaler is not self.scaler and not (is_one(block.scale) and is_one(scale)):
                raise AmpError(
                    "amp.scale_loss(loss_id={}) was entered inside of amp.scale_loss(loss_id={}) with the same "
                    "optimizer: gradients of two loss scales would add up. Close the first block before, or use one "
                    "block for the sum of the losses.".format(self.loss_id, block.loss_id)
                )
        return around

    def _scale_within(self, around):
        scales = [block.scale for block in around if block.scaler is self.scaler]
        return scales[0] if scales else self.scaler.scale_now()

    def __exit__(self, kind, error, trace):
        for adapter in self.adapters:
            adapter.open_passes.discard(self)
        nested = [adapter for adapter in self.adapters if self._is_left_to_others(adapter)]
        adapters = [adapter for adapter in self.adapters if adapter not in nested]
        self.casts.backend.clear_cache()
        if self.adapters and not is_one(self.scale):
            self.adapters[0].links.passes.note(self.scale)
        if self.others and not is_one(self.scale):
            note_pass(self.loss, self.scale, self.others)
        if kind is not None:
            earlier = self.scaler.overflow_state()
            self._unscale(adapters)
            self.scaler.clear_overflow_state(earlier)
        elif self.delay_unscale:
            for adapter in adapters:
                adapter.leave_scaled(self.scale)
            self.replicas.note_local(self.adapters, stay=True)
        else:
            self._unscale(adapters)
            self._judge(adapters, nested)
        if kind is None:
            for observer in self.observers:
                observer.after_backward(self)

    def _is_left_to_others(self, adapter):
        """Return whether an adapter's gradients stay scaled: other blocks with this scaler are still open for it."""
        return any(block.scaler is self.scaler for block in list(adapter.open_passes))

    def _unscale(self, adapters):
        with self.casts.paused(), torch.no_grad():
            seen = set()
            for adapter in adapters:
                adapter.after_backward(self.scaler, self.scale, seen)

    def _judge(self, adapters, nested):
        """Make the overflow check, or postpone it.

        Args:
            adapters: of the optimizers whose gradients are unscaled.
            nested: adapters whose gradients are still scaled: an outer block will unscale them.
        """
        is_local, groups = False, ()
        if self.replicas.are_there():
            self.replicas.note_local(nested, stay=True)
            is_local = self.replicas.note_local(adapters, stay=False)
            with self.casts.paused(), torch.no_grad():
                groups = self.replicas.average(adapters)
        if self.delay_overflow_check:
            return
        judgement = Judgement(self.scaler, self.loss_id, self.adapters)
        if is_local or nested:
            judgement.postpone()
        else:
            self.verdict = judgement.give(groups)


def _leaves_half_gradients(adapters, high):
    dtypes = {param.dtype for adapter in adapters for param in adapter.reached()}
    return any(is_narrower(torch.empty((), dtype=dtype), high) for dtype in dtypes)


def _beside(scale, loss):
    return scale.to(loss.device) if isinstance(scale, torch.Tensor) else scale
