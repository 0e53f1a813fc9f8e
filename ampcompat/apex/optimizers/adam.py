"""Adam and AdamW: ``FusedAdam``. With a keyword of before October 2019 it creates the class of that time.

``adam_w_mode`` is on by default, so weight decay is decoupled by default.
"""

import functools
import inspect

from ...errors import AmpError, AmpTypeError
from ..multi_tensor import functions, updates
from .fused import STEP, FusedOptimizer, checked, evaluated, on_device, refuse_amsgrad
from .scaling import grad_scaler_in, handed_over

#: Keywords of the ``FusedAdam`` of before October 2019 only.
OLDER_KEYWORDS = ("eps_inside_sqrt", "max_grad_norm", "use_mt", "amp_scale_adjustment")


def older_by_its_keywords(init):
    """Decorate ``FusedAdam.__init__``: with a keyword of before October 2019 the object becomes one of that class.

    The signature stays that of ``init``.
    """

    @functools.wraps(init)
    def either(self, *args, **kwargs):
        older = [keyword for keyword in OLDER_KEYWORDS if keyword in kwargs]
        if not older:
            return init(self, *args, **kwargs)
        from ..contrib.optimizers import FusedAdam as Older  # imported here, because it is a subclass of this one

        if type(self) is not FusedAdam:
            raise AmpTypeError(
                "{} is a keyword of the FusedAdam of before October 2019, which is apex.contrib.optimizers.FusedAdam: "
                "derive {} from that.".format(older[0], type(self).__name__)
            )
        self.__class__ = Older
        return Older.__init__(self, *args, **kwargs)

    either.__signature__ = inspect.signature(init)
    return either


class FusedAdam(FusedOptimizer):
    """Adam, with weight decay as in AdamW or as an L2 term.

    Args:
        params: params, or param groups.
        lr: learning rate; a number, or a tensor of shape ().
        bias_correction: whether the averages are corrected for their initial value 0.
        betas: decay rates of the running means of the gradients and of their squares.
        eps: added to the root of the squares.
        adam_w_mode: weight decay is decoupled (AdamW); otherwise it is added to the gradient.
        weight_decay: weight decay.
        amsgrad: not supported; ``True`` raises ``RuntimeError``.
        set_grad_none: ``zero_grad`` sets gradients to None.
        capturable: learning rate and step count are tensors on the device, so that a CUDA graph can hold the step.
        master_weights: the optimizer keeps float32 copies of half params and updates those. No effect on params that
            have master weights of amp (O2, O5).

    With ``max_grad_norm``, ``eps_inside_sqrt``, ``use_mt`` or ``amp_scale_adjustment`` this is the optimizer that had
    the name before October 2019, ``apex.contrib.optimizers.FusedAdam``.
    """

    state_names = ("exp_avg", "exp_avg_sq")
    multi_tensor_adam = staticmethod(functions.multi_tensor_adam)

    @older_by_its_keywords
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

        ``grad_scaler=``: a ``torch.cuda.amp.GradScaler``, if the gradients are still scaled by it. The other arguments
        are those of the optimizer of before 2019, ``apex.contrib.optimizers.FusedAdam``; they raise an error.
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
        if self.capturable and group["params"]:  # in place: a captured graph increments it
            skip = self._scaling.skip_on(group["params"][0].device)
            group[STEP] = on_device(group.get(STEP, 0.0), group)
            group[STEP].add_(1.0 if skip is None else 1.0 - skip)
        else:
            super()._advance(group)

    def _update_batch(self, group, batch):
        updates.adam(*batch.rows, decoupled=bool(self.adam_w_mode), **self._numbers(group, batch))
