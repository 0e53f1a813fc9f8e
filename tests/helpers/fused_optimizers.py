"""Test whether the installed torch has fused optimizers on a CPU: 2.3 takes the option there, and has no kernels."""

import torch


def why_not(name):
    """Return the error of a fused step of torch's optimizer of this name on the CPU, or None."""
    param = torch.nn.Parameter(torch.ones(1))
    param.grad = torch.ones(1)
    try:
        getattr(torch.optim, name)([param], lr=0.1, fused=True).step()
    except (TypeError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return None
