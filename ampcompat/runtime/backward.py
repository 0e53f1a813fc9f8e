"""One ``with scale_loss(...)``: what happens to gradients on the way in and on the way out.

Owns: ``BackwardPass``.
Must not touch: gradients and scales directly; adapters and scalers do.
The surprise: when the body raises, gradients still come out in true units, and what overflowed is nobody's verdict. Nor
is there one after a pass that DistributedDataParallel did not reduce: ranks would differ. The next that is reduced
judges both, or the step.
"""

import torch

from ..parts.scaler import is_one, is_same
from ..parts.skips import Judgement
from ..parts.tensors import is_narrower

#: For ``delay_unscale``: where a sum of scaled gradients is as good as a sum of unscaled ones. The verdict is delayed
#: in any case.
WHERE_EQUAL = "where equal"


class BackwardPass:
    """A context manager that yields the scaled loss.

    Args:
        loss: a tensor.
        high: the dtype in which the loss is scaled.
        scaler: the ``LossScaler`` of this loss.
        loss_id: its number.
        adapters: of the optimizers whose params the pass reaches.
        bystanders: ``Bystander`` of other optimizers, to see whether it reaches theirs too.
        casts: the ``ProcessCasts``.
        replicas: the ``Replicas``.
        observers: who hears of it.
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
        bystanders,
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
        self.bystanders = bystanders
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
        # Forward is over. Autograd holds the casts of weights that it needs, and frees them one by one as it goes, unless
        # somebody else holds them too.
        self.casts.backend.clear_cache()
        self.scale = self.scaler.scale_now()
        for observer in self.observers:
            observer.before_backward(self)
        if any([adapter.has_to_make_room() for adapter in self.adapters]):
            with self.casts.paused(), torch.no_grad():
                seen, are_local = set(), self.replicas.have_left(self.adapters)
                for adapter in self.adapters:
                    if adapter.holds_scaled_gradients() and not is_same(self.scale, adapter.pending_scale):
                        self.replicas.note_moved([adapter])
                    adapter.before_backward(self.scaler, self.scale, seen, are_local)
        loss = self.loss if self.loss.dtype is self.high else self.loss.to(self.high)
        return loss if is_one(self.scale) else loss * _beside(self.scale, loss)

    def __exit__(self, kind, error, trace):
        self.casts.backend.clear_cache()
        for bystander in self.bystanders if not is_one(self.scale) else ():
            bystander.compare(self.scale)
        if kind is not None:
            earlier = self.scaler.overflow_state()
            self._unscale()
            self.scaler.clear_overflow_state(earlier)
        elif self.delay_unscale:
            for adapter in self.adapters:
                adapter.leave_scaled(self.scale)
            self.replicas.note_local(self.adapters, stay=True)
        else:
            self._unscale()
            self._judge()
        if kind is None:
            for observer in self.observers:
                observer.after_backward(self)

    def _unscale(self):
        with self.casts.paused(), torch.no_grad():
            seen = set()
            for adapter in self.adapters:
                adapter.after_backward(self.scaler, self.scale, seen)

    def _judge(self):
        """Ask for the verdict, or see to it that somebody will."""
        is_local, groups = False, ()
        if self.replicas.are_there():
            is_local = self.replicas.note_local(self.adapters, stay=False)
            with self.casts.paused(), torch.no_grad():
                groups = self.replicas.average(self.adapters)
        if self.delay_overflow_check:
            return
        judgement = Judgement(self.scaler, self.loss_id, self.adapters)
        if is_local:
            judgement.postpone()
        else:
            self.verdict = judgement.give(groups)


def _leaves_half_gradients(adapters, high):
    dtypes = {param.dtype for adapter in adapters for param in adapter.reached()}
    return any(is_narrower(torch.empty((), dtype=dtype), high) for dtype in dtypes)


def _beside(scale, loss):
    return scale.to(loss.device) if isinstance(scale, torch.Tensor) else scale
