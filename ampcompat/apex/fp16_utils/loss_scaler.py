"""The loss scalers of the loops that were written by hand; ``FP16_Optimizer`` uses ``parts.scaler`` instead.

Owns: ``LossScaler``, ``DynamicLossScaler``.
Must not touch: optimizers; a loop asks ``has_overflow`` and decides.
The surprise: pickled ones are in old checkpoints, so the names of the attributes are Apex's.
"""

import torch

from ...parts import tensors


class LossScaler:
    """A scale that stays.

    Args:
        scale: what losses are multiplied by.
    """

    def __init__(self, scale=1):
        self.cur_scale = scale

    def has_overflow(self, params):
        """Return False: a static scale does not look."""
        return False

    def update_scale(self, overflow):
        """Do nothing."""

    @property
    def loss_scale(self):
        """The scale."""
        return self.cur_scale

    def scale_gradient(self, module, grad_in, grad_out):
        """Return the gradients ``grad_in``, scaled: a hook for ``module.register_backward_hook``."""
        return tuple(None if grad is None else self.loss_scale * grad for grad in grad_in)

    def backward(self, loss, retain_graph=False):
        """Run backward from the scaled loss."""
        (loss * self.loss_scale).backward(retain_graph=retain_graph)


class DynamicLossScaler(LossScaler):
    """A scale that is divided at an overflow and multiplied after ``scale_window`` passes without one.

    Args:
        init_scale: where it starts.
        scale_factor: the factor of both; the scale never falls below 1.
        scale_window: good passes before it grows.
    """

    def __init__(self, init_scale=2**32, scale_factor=2.0, scale_window=1000):
        super().__init__(init_scale)
        self.cur_iter = 0
        self.last_overflow_iter = -1
        self.scale_factor = scale_factor
        self.scale_window = scale_window

    def has_overflow(self, params):
        """Return whether the gradient of a param holds inf or nan."""
        return has_non_finite([param.grad for param in params if param.grad is not None])

    def update_scale(self, overflow):
        """Take in one pass."""
        if overflow:
            self.cur_scale = max(self.cur_scale / self.scale_factor, 1)
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
            self.cur_scale *= self.scale_factor
        self.cur_iter += 1


def has_non_finite(grads):
    """Return whether one of the gradients holds inf or nan; waits for each device once."""
    flags = {}
    with torch.no_grad():
        for alike in tensors.grouped([grad.coalesce() if grad.is_sparse else grad for grad in grads]):
            device = alike[0].device
            if device not in flags:
                flags[device] = torch.zeros((), dtype=torch.float32, device=device)
            tensors.check_and_scale_(alike, 1.0, flags[device])
    return any(flag.item() != 0.0 for flag in flags.values())
