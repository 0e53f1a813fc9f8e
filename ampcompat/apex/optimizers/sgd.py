"""Stochastic gradient descent with momentum.

Owns: ``FusedSGD``.
Must not touch: the formula, which is ``multi_tensor.updates.sgd``.
The surprise: ``materialize_master_grads=False`` made Apex read half gradients in the step itself; ours come out the
same either way, so it is kept for those who ask and changes nothing.
"""

from ..multi_tensor import functions, updates
from .fused import FusedOptimizer, checked, clear_gradients

BUFFER = "momentum_buffer"


class FusedSGD(FusedOptimizer):
    """SGD with momentum, as ``torch.optim.SGD``, and a choice of when weights decay.

    Args:
        params: params, or param groups.
        lr: learning rate.
        momentum: how much of the momentum a step keeps.
        dampening: how much less than all of the gradient enters the momentum, after the first step.
        weight_decay: weight decay.
        nesterov: Nesterov's momentum; needs momentum, and no dampening.
        wd_after_momentum: the decay is added to the momentum's result instead of to the gradient.
        materialize_master_grads: accepted, changes nothing.
        set_grad_none: ``zero_grad`` sets gradients to None.
    """

    multi_tensor_sgd = staticmethod(functions.multi_tensor_sgd)

    def __init__(
        self,
        params,
        lr,
        momentum=0,
        dampening=0,
        weight_decay=0,
        nesterov=False,
        wd_after_momentum=False,
        materialize_master_grads=True,
        set_grad_none=False,
    ):
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov needs a momentum and no dampening")
        group = checked(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        modes = {
            "wd_after_momentum": wd_after_momentum,
            "materialize_master_grads": materialize_master_grads,
            "most_recent_scale": 1.0,
            "scale_set_by_backward": False,
        }
        super().__init__(params, group, set_grad_none, **modes)

    def zero_grad(self, set_to_none=False):
        """Clear the gradients: to 0, or to None if ``set_to_none`` or ``set_grad_none`` is true."""
        clear_gradients(self.param_groups, set_to_none or self.set_grad_none)

    def _update(self):
        # Steps are not counted: Apex's checkpoints have no such entry.
        for group in self.param_groups:
            known = [param for param in group["params"] if self._has_momentum(param)]
            fresh = [param for param in group["params"] if not self._has_momentum(param)]
            for params, is_first in ((known, False), (fresh, True)):
                for batch in self._batches(params, (BUFFER,) if group["momentum"] else ()):
                    self._update_batch(group, batch, is_first)
                    self._finish(batch)

    @property
    def _step_supports_amp_scaling(self):
        # A first step is not dampened, and whether one was the first only the host knows.
        dampened = any(group["momentum"] and group["dampening"] for group in self.param_groups)
        return not dampened and super()._step_supports_amp_scaling

    def _has_momentum(self, param):
        return self.state[param].get(BUFFER) is not None if param in self.state else False

    def _update_batch(self, group, batch, is_first):
        updates.sgd(
            batch.weights,
            batch.grads,
            batch.state.get(BUFFER),
            group["lr"],
            group["momentum"],
            group["dampening"],
            group["nesterov"],
            group["weight_decay"],
            decays_last=self.wd_after_momentum,
            is_first=is_first,
            skip=batch.skip
        )
