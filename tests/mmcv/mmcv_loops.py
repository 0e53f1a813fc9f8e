"""A loop as a runner of mmcv's makes it, without mmcv; models with decorated methods.

Owns: ``BareRunner``, ``Decorated``, ``Switched``.
Must not touch: hooks.
The surprise: the runner is what the hooks ask for and no more.
"""

import torch

from ampcompat.mmcv import auto_fp16
from networks import INPUT, Product


class BareRunner:
    """Has a model and an optimizer; calls the stages of one hook.

    Args:
        losses: (model, iteration) -> loss.
        iter, meta: where a resumed run begins, and with what.
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


class Decorated(torch.nn.Module):
    """Returns what its ``forward`` was given, and the dtype of a product in it, under MMCV's decorator."""

    def __init__(self, dtype=torch.float32, enabled=True):
        super().__init__()
        self.fp16_enabled = enabled
        self.weight = torch.nn.Parameter(torch.eye(2, dtype=dtype))

    @auto_fp16()
    def forward(self, x, *others, **named):
        """Return (x, others, named, the dtype of a product)."""
        return x, others, named, torch.mm(x, self.weight).dtype


class Switched(Product):
    """The network whose every rounding is known, with MMCV's switch."""

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
    """Return (model, iteration) -> loss of a ``Switched`` model; inf at some iterations."""

    def loss(model, iteration):
        total = model(INPUT.to(setting.high)).sum() * factor_of(iteration)
        return total * float("inf") if iteration in overflows else total

    return loss
