"""One ``with scale_loss(...)``: what happens to gradients on the way in and on the way out.

Owns: ``BackwardPass``.
Must not touch: gradients and scales directly; adapters and scalers do.
The surprise: when the body raises, gradients still come out in true units, and what overflowed is nobody's verdict.
"""

import torch

from ..parts.scaler import is_one


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
        observers: who hears of it.
        delay_unscale, delay_overflow_check: see ``amp.scale_loss``.
    """

    def __init__(
        self, loss, high, scaler, loss_id, adapters, bystanders, casts, observers, delay_unscale, delay_overflow_check
    ):
        self.loss = loss
        self.high = high
        self.scaler = scaler
        self.loss_id = loss_id
        self.adapters = adapters
        self.bystanders = bystanders
        self.casts = casts
        self.observers = observers
        self.delay_unscale = delay_unscale
        self.delay_overflow_check = delay_overflow_check
        self.scale = None
        self.verdict = None

    def __enter__(self):
        self.scale = self.scaler.scale_now()
        for observer in self.observers:
            observer.before_backward(self)
        with self.casts.paused():
            with torch.no_grad():
                seen = set()
                for adapter in self.adapters:
                    adapter.before_backward(self.scaler, self.scale, seen)
            loss = self.loss.to(self.high)
            return loss if is_one(self.scale) else loss * _beside(self.scale, loss)

    def __exit__(self, kind, error, trace):
        self.casts.backend.clear_cache()
        for bystander in self.bystanders if not is_one(self.scale) else ():
            bystander.compare(self.scale)
        if kind is not None:
            self._unscale()
            self.scaler.clear_overflow_state()
        elif self.delay_unscale:
            for adapter in self.adapters:
                adapter.leave_scaled(self.scale)
        else:
            self._unscale()
            if not self.delay_overflow_check:
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
        scaler = self.scaler
        self.verdict = scaler.judge(on_device=all(adapter.skips.are_on_device() for adapter in self.adapters))
        if scaler.checks:
            for adapter in self.adapters:
                adapter.heed(self.verdict, self.loss_id, scaler)


def _beside(scale, loss):
    return scale.to(loss.device) if isinstance(scale, torch.Tensor) else scale
