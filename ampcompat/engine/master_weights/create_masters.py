"""Makes the master of a half param, and casts the optimizer's state to its dtype; ``Snapshot`` undoes both."""

import torch

from ...support.tensor_lists import set_stored_gradient


class Snapshot:
    """An optimizer's params, their gradients and their state before its params are replaced by masters."""

    def __init__(self, optimizer):
        self.groups = [list(group["params"]) for group in optimizer.param_groups]
        self.grads = [(param, param.grad) for params in self.groups for param in params]
        # Besides the state of params there may be entries of the whole optimizer, such as a count of its steps.
        entries = optimizer.state.items()
        self.state = [(key, dict(entry) if isinstance(entry, dict) else entry) for key, entry in entries]

    def restore(self, optimizer):
        """Restore the optimizer's params, gradients and state."""
        for group, params in zip(optimizer.param_groups, self.groups):
            group["params"][:] = params
        for param, grad in self.grads:
            param.grad = grad
        optimizer.state.clear()
        for key, entry in self.state:
            optimizer.state[key] = entry


def make_master(param, originals, dtype):
    """Return a master of a half param, with its gradient and Python attributes, and its original values if known."""
    value, grad = originals[id(param)] if id(param) in originals else (param.detach(), param.grad)
    # No ``Parameter``, whose ``.grad`` may be replaced by a slower property (``grad_of_half_params``).
    master = value.to(dtype).detach().requires_grad_(True)
    vars(master).update(vars(param))  # attributes that optimizers read, such as "no weight decay"
    if grad is not None:
        master.grad = grad.to(dtype)
        set_stored_gradient(param, None)
    return master


def recast(state, shape, dtype):
    """Cast the floating tensors of a param's state that have the param's shape, but not its count of steps."""
    for name, value in (state or {}).items():
        if name == "step" or not isinstance(value, torch.Tensor):
            continue
        if value.is_floating_point() and value.shape == shape:
            state[name] = value.to(dtype)
