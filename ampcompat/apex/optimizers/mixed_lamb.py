"""``FusedMixedPrecisionLamb``: LAMB that keeps float32 copies of half params itself.

Learning rate and step count are plain numbers, but tensors of one element in Apex. Arguments and checkpoints may have
either form.
"""

from .fused import evaluate_closure
from .lamb import FusedLAMB
from .step_scaling import pop_grad_scaler, step_scaling


class FusedMixedPrecisionLamb(FusedLAMB):
    """LAMB for a model that is entirely in half, without amp's master weights.

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

    def step(self, closure=None, **kwargs):
        """Take a step; return the loss that ``closure`` computed before it, or None without a closure.

        ``grad_scaler=``: a ``torch.cuda.amp.GradScaler``, if the gradients are still scaled by it.
        """
        loss = evaluate_closure(closure)
        self._step_with(step_scaling(self, pop_grad_scaler(kwargs)))
        return loss

    def _keeps_master(self, param):
        return param.dtype == self.reduced_precision_dtype
