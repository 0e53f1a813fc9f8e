"""``FusedAdam`` and ``FusedSGD`` of before 2019, whose ``step`` takes gradients, output params and a scale.

This ``FusedAdam`` is not the algorithm that has the name today: eps is added without bias correction, and
``max_grad_norm`` clips each param group by its own norm. The formulas are in ``multi_tensor.updates``.
"""

import torch

from ... import tensor_lists
from ...errors import AmpTypeError
from .. import optimizers
from ..multi_tensor import foreach_ops, updates
from ..optimizers.fused import FusedOptimizer, checked, evaluated, refuse_amsgrad
from ..optimizers.lamb import global_norm
from ..optimizers.scaling import handed_over


class SteppedByHand(FusedOptimizer):
    """Base of optimizers whose ``step`` takes gradients from elsewhere than the params."""

    _handed = {}  # id(param) -> gradient, during a step
    _norms = None  # a norm per group, of the scaled gradients

    def step(self, closure=None, grads=None, output_params=None, scale=1.0, grad_norms=None):
        """Step, and return the loss that ``closure``, if there is one, computed before.

        Args:
            closure: clears the gradients, computes the loss, goes backward, returns the loss.
            grads: a list of gradients per group, or one list if there is one group. None instead of a gradient, or of
                all, means ``param.grad``.
            output_params: likewise, tensors of another dtype that get the new weights.
            scale: the gradients are first divided by it.
            grad_norms: the norm of the scaled gradients of each group, for ``max_grad_norm``; computed if None.
        """
        loss = evaluated(closure)
        rows = [(group["params"], each) for group, each in zip(self.param_groups, self._by_group("grads", grads))]
        self._handed = {
            id(param): grad for params, each in rows for param, grad in zip(params, each) if grad is not None
        }
        self._norms = None if grad_norms is None else [norm / scale for norm in grad_norms]
        try:
            self._step_under(handed_over(self).divided_by(scale))
        finally:
            del self._handed, self._norms
        with torch.no_grad():
            for group, outputs in zip(self.param_groups, self._by_group("output_params", output_params)):
                if outputs:
                    tensor_lists.copy_(outputs, group["params"])
        return loss

    def _by_group(self, name, given):
        """Return a list per group."""
        given = [] if given is None else list(given)
        if given and not isinstance(given[0], (list, tuple)):
            given = [given]
        groups = [group["params"] for group in self.param_groups]
        given = given or [[] for _ in groups]
        if [len(each) for each in given if each] != [len(group) for each, group in zip(given, groups) if each]:
            raise AmpTypeError(
                "step({}=...) expected lists as long as the param groups, {}, and got {}.".format(
                    name, [len(group) for group in groups], [len(each) for each in given]
                )
            )
        return given

    def _gradient(self, param):
        return self._handed.get(id(param), param.grad)


class FusedAdam(SteppedByHand, optimizers.FusedAdam):
    """Adam as Apex had it before October 2019.

    Args:
        params: params, or param groups.
        lr: learning rate.
        bias_correction: whether the averages are corrected for their initial value 0.
        betas: decay rates of the running means of the gradients and of their squares.
        eps: added to the root of the squares.
        eps_inside_sqrt: eps is added before the root instead.
        weight_decay: weight decay, decoupled.
        max_grad_norm: gradients of each group are clipped to this norm; 0: no clipping.
        amsgrad: not supported; ``True`` raises ``RuntimeError``.
        use_mt, amp_scale_adjustment: accepted, no effect.
    """

    state_names = ("exp_avg", "exp_avg_sq")

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
        refuse_amsgrad(amsgrad, "FusedAdam")
        group = checked(lr=lr, bias_correction=bias_correction, betas=betas, eps=eps, weight_decay=weight_decay)
        group["max_grad_norm"] = max_grad_norm
        modes = {"eps_mode": 0 if eps_inside_sqrt else 1, "capturable": False, "master_weights": False}
        FusedOptimizer.__init__(self, params, group, True, **modes)

    def _update(self):
        for index, group in enumerate(self.param_groups):
            self._advance(group)
            batches = self._batches(group["params"], self.state_names)
            divisor = self._divisor(index, group, batches)
            for batch in batches:
                self._update_batch(group, batch, divisor)
                self._finish(batch)

    def _divisor(self, index, group, batches):
        """Return the divisor of a group's gradients, as a tensor of shape (), or None."""
        if not group["max_grad_norm"] > 0 or not batches:
            return None
        norm = global_norm([batch.grads for batch in batches]) if self._norms is None else self._norms[index]
        norm = torch.as_tensor(norm, dtype=torch.float32, device=batches[0].params[0].device).reshape(())
        return updates.clip_divisor(norm + 1e-6, group["max_grad_norm"])

    def _update_batch(self, group, batch, divisor):
        weights, grads, means, squares = batch.rows
        if divisor is not None:
            grads = foreach_ops.mul(grads, 1.0)
            foreach_ops.scale_(grads, 1.0 / divisor.to(grads[0]))
        options = dict(self._numbers(group, batch), eps_inside_sqrt=self.eps_mode == 0)
        updates.adam_of_2018(weights, grads, means, squares, **options)


def as_older(optimizer):
    """Return ``optimizer``; an ``apex.optimizers.FusedAdam`` without current options is converted to the older one."""
    is_plain = type(optimizer) is optimizers.FusedAdam and not optimizer.state
    if is_plain and optimizer.adam_w_mode and not (optimizer.capturable or optimizer.master_weights):
        optimizer.__class__ = FusedAdam
        del optimizer._own["adam_w_mode"], optimizer.adam_w_mode
        optimizer._own["eps_mode"] = optimizer.eps_mode = 1
        for options in [optimizer.defaults] + optimizer.param_groups:
            options.setdefault("max_grad_norm", 0.0)
    return optimizer


class FusedSGD(SteppedByHand, optimizers.FusedSGD):
    """``apex.optimizers.FusedSGD`` with the ``step`` of before 2019; arguments as there."""


FusedLAMB = optimizers.FusedLAMB
