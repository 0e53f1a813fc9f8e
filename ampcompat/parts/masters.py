"""Make float32 masters of half params, and keep what is needed to unmake them.

Owns: ``make_master``, ``add_gradients``, ``recast`` for an optimizer's state, ``Snapshot`` of an optimizer.
Must not touch: which params get masters, and when.
The surprise: a master carries its param's Python attributes, because optimizers read marks there ("no weight decay").
"""

import torch

from . import tensors


class Snapshot:
    """An optimizer's params, their gradients and their state, as they were before an adapter came."""

    def __init__(self, optimizer):
        self.groups = [list(group["params"]) for group in optimizer.param_groups]
        self.grads = [(param, param.grad) for params in self.groups for param in params]
        self.state = [(param, dict(state)) for param, state in optimizer.state.items()]

    def restore(self, optimizer):
        """Put all of it back."""
        for group, params in zip(optimizer.param_groups, self.groups):
            group["params"][:] = params
        for param, grad in self.grads:
            param.grad = grad
        optimizer.state.clear()
        for param, state in self.state:
            optimizer.state[param] = state


def make_master(param, originals, dtype):
    """Return a master of a half param, with its marks and its gradient; the original values if those are known."""
    value, grad = originals[id(param)] if id(param) in originals else (param.detach(), param.grad)
    master = torch.nn.Parameter(value.to(dtype), requires_grad=True)
    vars(master).update(vars(param))  # marks that optimizers read, such as "no weight decay"
    if grad is not None:
        master.grad = grad.to(dtype)
        param.grad = None
    return master


def recast(state, shape, dtype):
    """Cast the floating tensors of a param's state that have the param's shape, but not its count of steps."""
    for name, value in (state or {}).items():
        if name == "step" or not isinstance(value, torch.Tensor):
            continue
        if value.is_floating_point() and value.shape == shape:
            state[name] = value.to(dtype)


def add_gradients(masters, grads):
    """Add gradients to those that the masters have; one that has none takes its gradient as it is."""
    sums, terms = [], []
    for master, grad in zip(masters, grads):
        held = master.grad
        if held is None:
            master.grad = grad
        elif held.is_sparse or grad.is_sparse:
            master.grad = held + grad
        else:
            sums.append(held)
            terms.append(grad)
    if sums:
        tensors.add_(sums, terms)
