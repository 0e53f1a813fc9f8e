"""Adam and AdamW.

Owns: ``FusedAdam``.
Must not touch: the formula, which is ``multi_tensor.updates.adam``.
The surprise: ``adam_w_mode`` is on by default, so weight decay is decoupled unless that is switched off.
"""

from ...errors import AmpError
from ..multi_tensor import functions, updates
from .fused import STEP, FusedOptimizer, checked, evaluated, on_device, refuse_amsgrad
from .scaling import grad_scaler_in, handed_over


class FusedAdam(FusedOptimizer):
    """Adam, with weight decay as AdamW has it, or as an L2 term.

    Args:
        params: params, or param groups.
        lr: learning rate; a number, or a tensor of shape ().
        bias_correction: whether the averages are corrected for having begun at 0.
        betas: how much of the mean of gradients, and of that of their squares, a step keeps.
        eps: added to the root of the squares.
        adam_w_mode: weight decay is decoupled (AdamW); otherwise it is added to the gradient.
        weight_decay: weight decay.
        amsgrad: not there; ``True`` is a ``RuntimeError``.
        set_grad_none: ``zero_grad`` sets gradients to None.
        capturable: learning rate and step count are tensors on the device, so that a CUDA graph can hold the step.
        master_weights: half params are updated in float32 copies that the optimizer keeps. For params that amp gave
            masters to (O2, O5) there is nothing to do.
    """

    state_names = ("exp_avg", "exp_avg_sq")
    multi_tensor_adam = staticmethod(functions.multi_tensor_adam)

    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        adam_w_mode=True,
        weight_decay=0.0,
        amsgrad=False,
        set_grad_none=True,
        capturable=False,
        master_weights=False,
    ):
        refuse_amsgrad(amsgrad, "FusedAdam")
        group = checked(lr=lr, bias_correction=bias_correction, betas=betas, eps=eps, weight_decay=weight_decay)
        modes = {"adam_w_mode": int(adam_w_mode), "capturable": capturable, "master_weights": master_weights}
        super().__init__(params, group, set_grad_none, **modes)

    def add_param_group(self, param_group):
        """Add a group of params."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if self.capturable and group["params"]:
            group["lr"] = on_device(group["lr"], group)

    def step(self, closure=None, grads=None, output_params=None, scale=None, grad_norms=None, **told):
        """Step, and return the loss that ``closure``, if there is one, computed before.

        ``grad_scaler=``: a ``torch.cuda.amp.GradScaler`` whose scale the gradients still carry. The other arguments are
        those of the optimizer that had this name before 2019, which is ``apex.contrib.optimizers.FusedAdam``: an error.
        """
        if any(argument is not None for argument in (grads, output_params, scale, grad_norms)):
            raise AmpError(
                "FusedAdam.step takes no grads, output_params, scale or grad_norms: that was the FusedAdam of before "
                "2019, which is apex.contrib.optimizers.FusedAdam. amp.initialize and amp.scale_loss do what these "
                "were for."
            )
        loss = evaluated(closure)
        self._step_under(handed_over(self, grad_scaler_in(told)))
        return loss

    def _advance(self, group):
        if self.capturable and group["params"]:  # in place: a graph that was captured counts this very tensor up
            skip = self._scaling.skip_on(group["params"][0].device)
            group[STEP] = on_device(group.get(STEP, 0.0), group)
            group[STEP].add_(1.0 if skip is None else 1.0 - skip)
        else:
            super()._advance(group)

    def _update_batch(self, group, batch):
        updates.adam(*batch.rows, decoupled=bool(self.adam_w_mode), **self._numbers(group, batch))
