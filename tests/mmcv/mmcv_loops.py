"""A minimal runner for MMCV's hooks, without mmcv, and models with decorated methods."""

import torch
from helpers.networks import INPUT, Product

from ampcompat.mmcv import auto_fp16


class BareRunner:
    """Has what the hooks require of a runner, and no more; calls the stages of one hook.

    Args:
        losses: (model, iteration) -> loss.
        iter, meta: the first iteration and the ``meta`` of a resumed run.
    """

    def __init__(self, model, optimizer, hook, losses, max_iters, iter=0, meta=None):
        self.model, self.optimizer, self.hook, self.losses = model, optimizer, hook, losses
        self.max_iters, self.iter, self.meta = max_iters, iter, meta
        self.outputs = None

    def run(self, until=None):
        """Train up to an iteration, the last by default; return this object."""
        self.hook.before_run(self)
        while self.iter < (self.max_iters if until is None else until):
            self.outputs = {"loss": self.losses(self.model, self.iter), "num_samples": 1}
            self.hook.after_train_iter(self)
            self.iter += 1
        return self


class ReturnsDtypes(torch.nn.Module):
    """Returns what its ``forward`` was given, and the dtype of a product in it, under MMCV's decorator."""

    def __init__(self, dtype=torch.float32, enabled=True):
        super().__init__()
        self.fp16_enabled = enabled
        self.weight = torch.nn.Parameter(torch.eye(2, dtype=dtype))

    @auto_fp16()
    def forward(self, x, *others, **named):
        """Return (x, others, named, the dtype of a product)."""
        return x, others, named, torch.mm(x, self.weight).dtype


class DecoratedProduct(Product):
    """``networks.Product``, whose every rounding is known, under MMCV's decorator."""

    def __init__(self, start):
        super().__init__(start)
        self.fp16_enabled = False

    @auto_fp16(out_fp32=True)
    def forward(self, x):
        """Return ``x * a * b``."""
        return super().forward(x)


def factor_of(iteration):
    """Return what the loss of an iteration is multiplied by: a power of two."""
    return 2.0 ** -(2 + iteration % 3)


def losses_of(setting, overflows=()):
    """Return (model, iteration) -> loss of a ``DecoratedProduct``; inf at some iterations."""

    def loss(model, iteration):
        total = model(INPUT.to(setting.high)).sum() * factor_of(iteration)
        return total * float("inf") if iteration in overflows else total

    return loss
