"""``FusedAdam``, ``LegacyFusedAdam``, which was called ``FusedAdam`` before October 2019, and ``FusedAdagrad``.

The formulas are in ``multi_tensor.updates``. ``FusedAdam`` creates a legacy object if it gets a keyword from before
October 2019.
"""

import functools
import inspect

import torch

from ...errors import AmpError, AmpTypeError
from ..multi_tensor import foreach_ops, functions, updates
from .explicit_gradients import ExplicitGradientOptimizer
from .fused import FusedOptimizer, on_device

#: Keywords of ``LegacyFusedAdam`` only.
LEGACY_KEYWORDS = ("eps_inside_sqrt", "max_grad_norm", "use_mt", "amp_scale_adjustment")


def accept_legacy_keywords(init):
    """Decorate ``FusedAdam.__init__``: a keyword from before October 2019 makes it a ``LegacyFusedAdam``.

    The signature stays that of ``init``.
    """

    @functools.wraps(init)
    def either(self, *args, **kwargs):
        legacy = [keyword for keyword in LEGACY_KEYWORDS if keyword in kwargs]
        if not legacy:
            return init(self, *args, **kwargs)
        if type(self) is not FusedAdam:
            raise AmpTypeError(
                f"{legacy[0]} is a keyword of FusedAdam from before October 2019, which is "
                f"apex.contrib.optimizers.FusedAdam: derive {type(self).__name__} from that."
            )
        self.__class__ = LegacyFusedAdam
        return LegacyFusedAdam.__init__(self, *args, **kwargs)

    either.__signature__ = inspect.signature(init)
    return either


class FusedAdam(FusedOptimizer):
    """Adam, with weight decay as in AdamW, which is the default, or as an L2 term.

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
        capturable: learning rate and step count are tensors on the device, so that the step can be captured in a CUDA
            graph.
        master_weights: the optimizer keeps float32 copies of half params and updates those. No effect on params that
            have master weights of amp (O2, O5).

    With ``max_grad_norm``, ``eps_inside_sqrt``, ``use_mt`` or ``amp_scale_adjustment``, this is the optimizer of that
    name from before October 2019, ``apex.contrib.optimizers.FusedAdam``.
    """

    state_names = ("exp_avg", "exp_avg_sq")
    multi_tensor_adam = staticmethod(functions.multi_tensor_adam)

    @accept_legacy_keywords
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
        group = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        modes = {"adam_w_mode": int(adam_w_mode), "capturable": capturable, "master_weights": master_weights}
        super().__init__(params, group, set_grad_none, amsgrad, **modes)

    def add_param_group(self, param_group):
        """Add a group of params."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if self.capturable and group["params"]:
            group["lr"] = on_device(group["lr"], group)

    def step(self, closure=None, grads=None, output_params=None, scale=None, grad_norms=None, **kwargs):
        """Take a step; return the loss that ``closure`` computed before it, or None without a closure.

        ``grad_scaler=``: a ``torch.cuda.amp.GradScaler``, if the gradients are still scaled by it. The other arguments
        are those of the optimizer from before 2019, ``apex.contrib.optimizers.FusedAdam``; they raise an error.
        """
        if any(argument is not None for argument in (grads, output_params, scale, grad_norms)):
            raise AmpError(
                "FusedAdam.step has no grads, output_params, scale or grad_norms: that was the FusedAdam from before "
                "2019, which is apex.contrib.optimizers.FusedAdam. amp.initialize and amp.scale_loss do what these "
                "were for."
            )
        return super().step(closure, **kwargs)

    def _update_batch(self, group, batch):
        updates.adam(*batch.lists, decoupled=bool(self.adam_w_mode), **self._adam_options(group, batch))


class LegacyFusedAdam(ExplicitGradientOptimizer, FusedAdam):
    """Apex's Adam from before October 2019: eps is added without bias correction.

    Args:
        params, lr, bias_correction, betas, eps, weight_decay, amsgrad: as in ``FusedAdam``; the decay is decoupled.
        eps_inside_sqrt: eps is added before the root of the squares instead of after it.
        max_grad_norm: gradients of each group are clipped to this norm; 0: no clipping.
        use_mt, amp_scale_adjustment: accepted, no effect.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        eps_inside_sqrt=False,
        weight_decay=0.0,
        max_grad_norm=0.0,
        amsgrad=False,
        use_mt=False,
        amp_scale_adjustment=1.0,
    ):
        group = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        group["max_grad_norm"] = max_grad_norm
        FusedOptimizer.__init__(self, params, group, True, amsgrad, eps_mode=0 if eps_inside_sqrt else 1)

    def _update(self):
        for index, group in enumerate(self.param_groups):
            self._count_step(group)
            batches = self._batches(group["params"], self.state_names)
            divisor = self._divisor(index, group, batches)
            for batch in batches:
                self._apply(group, batch, divisor)

    def _divisor(self, index, group, batches):
        """Return the divisor of a group's gradients, as a tensor of shape (), or None."""
        if not group["max_grad_norm"] > 0 or not batches:
            return None
        given = self._grad_norms
        norm = foreach_ops.total_norm([batch.grads for batch in batches]) if given is None else given[index]
        norm = torch.as_tensor(norm, dtype=torch.float32, device=batches[0].params[0].device).reshape(())
        return updates.clip_divisor(norm + 1e-6, group["max_grad_norm"])

    def _update_batch(self, group, batch, divisor):
        weights, grads, means, squares = batch.lists
        if divisor is not None:
            grads = foreach_ops.scaled(grads, 1.0 / divisor.to(grads[0]))
        options = dict(self._adam_options(group, batch), eps_inside_sqrt=self.eps_mode == 0)
        updates.legacy_adam(weights, grads, means, squares, **options)


LegacyFusedAdam.__name__ = "FusedAdam"  # in ``repr``, as in Apex; pickles have ``__qualname__``


class FusedAdagrad(FusedOptimizer):
    """Adagrad, with weight decay as an L2 term or decoupled.

    Unlike ``torch.optim.Adagrad`` it has no learning rate decay and no initial value of the sum.

    Args:
        params, lr, weight_decay, set_grad_none: as in ``FusedAdam``.
        eps: added to the root of the sum of squares.
        adagrad_w_mode: weight decay is decoupled; otherwise it is added to the gradient.
    """

    state_names = ("sum",)
    multi_tensor_adagrad = staticmethod(functions.multi_tensor_adagrad)

    def __init__(self, params, lr=1e-2, eps=1e-10, weight_decay=0.0, set_grad_none=True, adagrad_w_mode=False):
        group = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, group, set_grad_none, adagrad_w_mode=int(adagrad_w_mode))

    def _count_step(self, group):
        """Do nothing: the formula does not use the step count."""

    def _update_batch(self, group, batch):
        options = (group["lr"], group["eps"], group["weight_decay"], bool(self.adagrad_w_mode))
        updates.adagrad(*batch.lists, *options, found_inf=batch.found_inf)
