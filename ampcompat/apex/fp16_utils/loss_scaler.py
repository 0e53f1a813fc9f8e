"""``LossScaler`` and ``DynamicLossScaler``, the loss scalers for hand-written training loops.

A loop calls ``has_overflow`` and decides itself whether to step. The attributes have Apex's names, because old
checkpoints contain pickled scalers. ``FP16_Optimizer`` uses ``engine.loss_scaling.loss_scaler`` instead.
"""

import torch

from ...support import tensor_lists


class LossScaler:
    """A static loss scale: losses are multiplied by it."""

    def __init__(self, scale=1):
        self.cur_scale = scale

    def has_overflow(self, params):
        """Return False: a static scale has no overflow check."""
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
    """A dynamic loss scale: divided after an overflow, multiplied after ``scale_window`` iterations without overflow.

    Args:
        scale_factor: the scale is divided or multiplied by it; it never falls below 1.
        scale_window: iterations without overflow before the scale grows.
    """

    def __init__(self, init_scale=2**32, scale_factor=2.0, scale_window=1000):
        super().__init__(init_scale)
        self.cur_iter = 0
        self.last_overflow_iter = -1
        self.scale_factor = scale_factor
        self.scale_window = scale_window

    def has_overflow(self, params):
        """Return whether the gradient of a param contains inf or nan."""
        return has_non_finite([param.grad for param in params if param.grad is not None])

    def update_scale(self, overflow):
        """Update the scale after one iteration."""
        if overflow:
            self.cur_scale = max(self.cur_scale / self.scale_factor, 1)
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
            self.cur_scale *= self.scale_factor
        self.cur_iter += 1


def dynamic_scaler_state(values):
    """Return the attributes of a ``DynamicLossScaler`` as the state dict of the engine's ``LossScaler``."""
    unskipped = values.get("cur_iter", 0) - values.get("last_overflow_iter", -1) - 1
    return {"loss_scale": values["cur_scale"], "unskipped": unskipped % values.get("scale_window", 1000)}


def has_non_finite(grads):
    """Return whether one of the gradients contains inf or nan; synchronizes with each device once."""
    flags = {}
    with torch.no_grad():
        for group in tensor_lists.grouped([grad.coalesce() if grad.is_sparse else grad for grad in grads]):
            device = group[0].device
            if device not in flags:
                flags[device] = torch.zeros((), dtype=torch.float32, device=device)
            tensor_lists.check_and_scale_(group, 1.0, flags[device])
    return any(flag.item() != 0.0 for flag in flags.values())
