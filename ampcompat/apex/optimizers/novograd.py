"""NovoGrad, whose second moment is one norm per tensor. The formulas are in ``multi_tensor.updates``."""

import torch

from ...errors import AmpValueError
from ..multi_tensor import foreach_ops, functions, updates
from .fused import FusedOptimizer

MOMENT = "exp_avg_sq"
#: The moment of a param without steps, or with only skipped ones; norms are never negative.
NO_MOMENT = -1.0
#: Apex's values of ``norm_type``.
ORDERS = {2: 2, 0: float("inf")}


class FusedNovoGrad(FusedOptimizer):
    """NovoGrad: gradients are divided by a running norm of their tensor.

    As in Apex, the second moment is a norm, not its square. It is stored in each param's state, while Apex stores two
    tensors per param group; the moments of Apex's checkpoints are loaded too.

    Args:
        params, lr, bias_correction, weight_decay, amsgrad, set_grad_none: as in ``FusedAdam``.
        betas: decay rates of the running means of the gradients and of their norm.
        eps: added to the norm.
        reg_inside_moment: norm and decay enter the mean, as in the paper; otherwise only the update.
        grad_averaging: the weight of a new gradient in the mean is ``1 - beta1``; otherwise 1.
        norm_type: 2, or 0 for the largest absolute value.
        init_zero: norms start at 0; otherwise at those of the first gradients.
    """

    state_names = ("exp_avg",)
    multi_tensor_novograd = staticmethod(functions.multi_tensor_novograd)

    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        amsgrad=False,
        reg_inside_moment=False,
        grad_averaging=True,
        norm_type=2,
        init_zero=False,
        set_grad_none=True,
    ):
        if norm_type not in ORDERS:
            raise AmpValueError(f"norm_type must be 2, or 0 for the largest absolute value, not {norm_type!r}")
        group = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        group.update(grad_averaging=grad_averaging, norm_type=norm_type, init_zero=init_zero)
        super().__init__(params, group, set_grad_none, amsgrad, moment_mode=0 if reg_inside_moment else 1)

    def load_state_dict(self, state_dict):
        """Load a state dict, including Apex's own."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            if MOMENT in group:
                self._assign_moments(group, group.pop(MOMENT))

    def _assign_moments(self, group, moments):
        """Distribute Apex's two tensors, one for half params and one for the others, to the state of the params."""
        half, other = (iter([] if each is None else each.float().reshape(-1).unbind()) for each in moments)
        for param in group["params"]:
            if "exp_avg" in self.state.get(param, {}):
                dtype = foreach_ops.compute_dtype(param.dtype)
                moment = next(half if param.dtype == torch.float16 else other, None)
                if moment is None:
                    raise AmpValueError("the checkpoint has fewer norms of gradients than params with state")
                self.state[param][MOMENT] = moment.to(device=param.device, dtype=dtype).clone()

    def _update_batch(self, group, batch):
        updates.novograd(
            *batch.lists,
            moments=self._moments(group, batch),
            grad_averaging=group["grad_averaging"],
            reg_inside_moment=self.moment_mode == 0,
            **self._adam_options(group, batch),
        )

    def _moments(self, group, batch):
        """Update the second moments of a batch for this step, and return them as one tensor."""
        order = ORDERS[group["norm_type"]]
        norms = foreach_ops.norms(batch.grads, order)
        missing = torch.full_like(norms[0], NO_MOMENT)
        before = torch.stack([self.state[param].get(MOMENT, missing) for param in batch.params])
        initial = torch.zeros_like(norms) if group["init_zero"] else norms
        moments = torch.where(before < 0, initial, before)
        moments = updates.update_moments(moments, norms, group["betas"][1], order)
        if batch.found_inf is not None:
            moments = torch.where(batch.found_inf != 0, before, moments)
        for param, moment in zip(batch.params, moments.unbind()):
            self.state[param][MOMENT] = moment
        return moments
