"""LARC: a learning rate for each param, from the ratio of its norm to its gradient's (You, Gitman and Ginsburg, 2017).

``LARC`` rescales gradients before the wrapped optimizer's step and does nothing else. It is a subclass of
``torch.optim.Optimizer``, so that learning rate schedulers accept it, but has no state of its own: params, state,
hooks and amp's record are those of the wrapped optimizer.
"""

import torch

from ...engine.optimizers.amp_stash import STASH
from ..multi_tensor import foreach_ops
from ..optimizers.fused import evaluate_closure

#: Other attributes that schedulers, hooks and amp read from an optimizer; they are those of the wrapped one.
_OPTIMIZER_ATTRIBUTES = ("defaults", "state", STASH)


class LARC(torch.optim.Optimizer):
    """Wraps an optimizer, by the formula of Specification 6.2.

    For each param whose norm ``|w|`` and whose gradient's norm ``|g|`` are not 0, the rate is
    ``trust_coefficient * |w| / (|g| + wd * |w| + eps)`` (if ``clip``, ``min(rate / lr, 1)``) and the gradient becomes
    ``(g + wd * w) * rate``. The optimizer then steps with a weight decay of 0.

    Args:
        optimizer: any optimizer; the rates of its groups may change at any time.
        trust_coefficient: the size of an update relative to the norm of its param.
        clip: whether ``lr`` is an upper bound of the adapted rate (LARC) or a factor of it (LARS).
        eps: added to the denominator.
    """

    def __init__(self, optimizer, trust_coefficient=0.02, clip=True, eps=1e-8):
        self.optim = optimizer
        self.trust_coefficient = trust_coefficient
        self.eps = eps
        self.clip = clip

    def __getattr__(self, name):
        if name in _OPTIMIZER_ATTRIBUTES or name.startswith("_optimizer_"):
            return getattr(self.optim, name)
        raise AttributeError(f"LARC has no attribute {name!r}; the optimizer that it wraps is .optim")

    def __getstate__(self):
        return {name: self.__dict__[name] for name in ("optim", "trust_coefficient", "eps", "clip")}

    def __setstate__(self, state):
        self.__dict__.update(state)

    def __repr__(self):
        return f"LARC({self.optim!r}, trust_coefficient={self.trust_coefficient}, clip={self.clip}, eps={self.eps})"

    @property
    def param_groups(self):
        """The wrapped optimizer's param groups."""
        return self.optim.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        self.optim.param_groups = groups

    def state_dict(self):
        """Return the wrapped optimizer's state dict; LARC has no state."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict):
        """Load a state dict of the wrapped optimizer, saved with or without LARC."""
        self.optim.load_state_dict(state_dict)

    def zero_grad(self, *args, **kwargs):
        """Clear the gradients as the wrapped optimizer does."""
        self.optim.zero_grad(*args, **kwargs)

    def add_param_group(self, param_group):
        """Add a group to the wrapped optimizer."""
        self.optim.add_param_group(param_group)

    def step(self, closure=None):
        """Rescale the gradients and step; return the loss that ``closure`` computed before, None without a closure."""
        loss = evaluate_closure(closure)
        decays = [group.get("weight_decay") for group in self.param_groups]
        try:
            with torch.no_grad():
                for group in self.param_groups:
                    self._rescale(group)
            for group in self.param_groups:
                if "weight_decay" in group:
                    group["weight_decay"] = 0
            self.optim.step()
        finally:
            for group, decay in zip(self.param_groups, decays):
                if "weight_decay" in group:
                    group["weight_decay"] = decay
        return loss

    def _rescale(self, group):
        """Rescale the gradients of a group; nothing is read from the device."""
        decay = group.get("weight_decay") or 0.0
        params = [param for param in group["params"] if param.grad is not None]
        for param in params:
            if param.grad.is_sparse and not param.grad.is_coalesced():
                param.grad = param.grad.coalesce()
        lists = zip(*[(param.detach(), param.grad, _values(param.grad)) for param in params])
        for _, (weights, all_grads, grads) in foreach_ops.split_by_dtype(list(lists) or [()]):
            weight_norms, grad_norms = foreach_ops.norms(weights), foreach_ops.norms(grads)
            rates = self.trust_coefficient * weight_norms / (grad_norms + decay * weight_norms + self.eps)
            if self.clip:
                rates = (rates / group["lr"]).clamp(max=1.0)
            adapts = (weight_norms != 0) & (grad_norms != 0)
            rates = torch.where(adapts, rates, torch.ones_like(rates)).to(grads[0].dtype)
            if decay:
                decays = (adapts.to(weight_norms.dtype) * decay).to(weights[0].dtype)
                products = foreach_ops.mul(weights, list(decays.unbind()))
                foreach_ops.add_(grads, list(map(_at_indices, products, all_grads)))
            foreach_ops.mul_(grads, list(rates.unbind()))


def _values(grad):
    return grad._values() if grad.is_sparse else grad.detach()


def _at_indices(tensor, grad):
    """Return the elements of ``tensor`` that a gradient has: all of them, or those at its indices if it is sparse."""
    return tensor[tuple(grad._indices().unbind())] if grad.is_sparse else tensor
