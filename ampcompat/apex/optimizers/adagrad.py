"""``FusedAdagrad``. Unlike ``torch.optim.Adagrad`` it has no learning rate decay and no initial value of the sum."""

from ..multi_tensor import functions, updates
from .fused import FusedOptimizer, checked_options


class FusedAdagrad(FusedOptimizer):
    """Adagrad, with weight decay as an L2 term or decoupled.

    Args:
        params, lr, weight_decay, set_grad_none: as in ``FusedAdam``.
        eps: added to the root of the sum of squares.
        adagrad_w_mode: weight decay is decoupled; otherwise it is added to the gradient.
    """

    state_names = ("sum",)
    multi_tensor_adagrad = staticmethod(functions.multi_tensor_adagrad)

    def __init__(self, params, lr=1e-2, eps=1e-10, weight_decay=0.0, set_grad_none=True, adagrad_w_mode=False):
        group = checked_options(lr=lr, eps=eps, weight_decay=weight_decay)
        super().__init__(params, group, set_grad_none, adagrad_w_mode=int(adagrad_w_mode))

    def _count_step(self, group):
        """Do nothing: the formula does not use the step count."""

    def _update_batch(self, group, batch):
        options = (group["lr"], group["eps"], group["weight_decay"], bool(self.adagrad_w_mode))
        updates.adagrad(*batch.lists, *options, found_inf=batch.found_inf)
