"""``FusedSGD``: stochastic gradient descent with momentum. The formula is ``multi_tensor.updates.sgd``.

``materialize_master_grads`` is accepted for compatibility and has no effect. With False, Apex reads half gradients in
the step itself, which gives the same result.
"""

from ...errors import AmpValueError
from ..multi_tensor import functions, updates
from .fused import FusedOptimizer, clear_gradients

BUFFER = "momentum_buffer"


class FusedSGD(FusedOptimizer):
    """SGD with momentum, like ``torch.optim.SGD``, and a choice of when weight decay is applied.

    Args:
        params, weight_decay, set_grad_none: as in ``FusedAdam``.
        lr: learning rate; optional if every param group has one.
        momentum: momentum factor.
        dampening: dampening of the momentum, after the first step.
        nesterov: Nesterov momentum; requires a momentum and no dampening.
        wd_after_momentum: the decay is added after the momentum instead of to the gradient.
        materialize_master_grads: accepted, no effect.
    """

    multi_tensor_sgd = staticmethod(functions.multi_tensor_sgd)

    def __init__(
        self,
        params,
        lr=None,
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
        group = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        group["nesterov"] = nesterov
        modes = {
            "wd_after_momentum": wd_after_momentum,
            "materialize_master_grads": materialize_master_grads,
            "most_recent_scale": 1.0,
            "scale_set_by_backward": False,
        }
        super().__init__(params, group, set_grad_none, **modes)

    def add_param_group(self, param_group):
        """Add a group of params.

        Raises:
            ValueError: neither the group nor the optimizer has a learning rate.
        """
        if self.defaults["lr"] is None and isinstance(param_group, dict) and param_group.get("lr") is None:
            raise AmpValueError("FusedSGD needs a learning rate: FusedSGD(params, lr=...), or lr in every param group.")
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none=False):
        """Clear the gradients: to 0, or to None if ``set_to_none`` or ``set_grad_none`` is true."""
        clear_gradients(self.param_groups, set_to_none or self.set_grad_none)

    def _update(self):
        # Steps are not counted, since Apex's checkpoints have no such entry.
        for group in self.param_groups:
            for is_first in (False, True):  # torch.optim.SGD saves None without a momentum
                without = [self.state.get(param, {}).get(BUFFER) is None for param in group["params"]]
                params = [param for param, has_none in zip(group["params"], without) if has_none == is_first]
                for batch in self._batches(params, (BUFFER,) if group["momentum"] else ()):
                    self._apply(group, batch, is_first)

    @property
    def _step_supports_amp_scaling(self):
        # The first step has no dampening, and only the host knows whether a step is the first.
        dampened = any(group["momentum"] and group["dampening"] for group in self.param_groups)
        return not dampened and super()._step_supports_amp_scaling

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
            decay_after_momentum=self.wd_after_momentum,
            is_first=is_first,
            found_inf=batch.found_inf,
        )
