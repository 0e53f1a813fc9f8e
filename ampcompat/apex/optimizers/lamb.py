"""LAMB, for large batches: the update of a tensor is scaled by the norm of its weights, and divided by its own.

The formulas are in ``multi_tensor.updates``. The gradients in ``param.grad`` are not modified.
"""

from ..multi_tensor import foreach_ops, functions, updates
from .fused import FusedOptimizer


class FusedLAMB(FusedOptimizer):
    """LAMB: Adam's update, scaled for each tensor by the norm of the weight over that of the update.

    Gradients are first clipped by their global norm over all groups.

    Args:
        params, lr, bias_correction, betas, eps, weight_decay, amsgrad, set_grad_none: as in ``FusedAdam``.
        adam_w_mode: weight decay is added to the update; otherwise to the gradient.
        grad_averaging: the weight of a new gradient in the mean is ``1 - beta1``; otherwise 1.
        max_grad_norm: gradients are clipped to this global norm; 0 or None: no clipping.
        use_nvlamb: also adapt tensors that have no weight decay.
    """

    state_names = ("exp_avg", "exp_avg_sq")
    multi_tensor_l2norm = staticmethod(functions.multi_tensor_l2norm)
    multi_tensor_lamb = staticmethod(functions.multi_tensor_lamb)

    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        amsgrad=False,
        adam_w_mode=True,
        grad_averaging=True,
        set_grad_none=True,
        max_grad_norm=1.0,
        use_nvlamb=False,
    ):
        group = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        group.update(grad_averaging=grad_averaging, max_grad_norm=max_grad_norm)
        super().__init__(params, group, set_grad_none, amsgrad, adam_w_mode=int(adam_w_mode), use_nvlamb=use_nvlamb)

    def _update(self):
        names = self.state_names
        batches = [(group, batch) for group in self.param_groups for batch in self._batches(group["params"], names)]
        norm = foreach_ops.total_norm([batch.grads for _, batch in batches])
        for group in self.param_groups:
            self._count_step(group)
        for group, batch in batches:
            self._apply(group, batch, norm)

    def _update_batch(self, group, batch, norm):
        limit = group.get("max_grad_norm", self.defaults["max_grad_norm"])
        updates.lamb(
            *batch.lists,
            divisor=updates.clip_divisor(norm.to(batch.params[0].device), limit) if limit else None,
            grad_averaging=group["grad_averaging"],
            decoupled=bool(self.adam_w_mode),
            nvlamb=self.use_nvlamb,
            **self._adam_options(group, batch),
        )


class FusedMixedPrecisionLamb(FusedLAMB):
    """LAMB for a model that is entirely in half, without amp's master weights.

    Learning rate and step count are plain numbers, but tensors of one element in Apex. Arguments and checkpoints may
    have either form.

    Args:
        step: the number of steps already taken.
        reduced_precision_dtype: params of this dtype get float32 copies, created in the first step; None: no copies.

    The other arguments are those of ``FusedLAMB``.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        step=0,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        amsgrad=False,
        adam_w_mode=True,
        grad_averaging=True,
        max_grad_norm=1.0,
        use_nvlamb=False,
        reduced_precision_dtype=None,
    ):
        options = (lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode, grad_averaging)
        super().__init__(params, *options, max_grad_norm=max_grad_norm, use_nvlamb=use_nvlamb)
        self._attributes["reduced_precision_dtype"] = self.reduced_precision_dtype = reduced_precision_dtype
        for group in self.param_groups:
            group.setdefault("step", int(step))

    def _keeps_master(self, param):
        return param.dtype == self.reduced_precision_dtype
