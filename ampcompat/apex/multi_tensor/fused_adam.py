"""Adam in one pass over memory, with torch's fused operation. ``updates.adam`` computes the same without it."""

import torch

from ...support.torch_compat.thread_context import tried_once


def supported(weights, grads, means, squares, lr, decoupled):
    """Return which tensors of these lists ``update`` supports, as a list of indices.

    It requires a single dtype and a number as learning rate. The kernels ignore strides, so the tensors must be
    contiguous. This is decided for each weight separately: its result must not depend on the other weights in the step.
    """
    lists = (weights, grads, means, squares)
    if isinstance(lr, torch.Tensor) or len({each[0].dtype for each in lists}) > 1:
        return []
    if not _is_available(weights[0].device, weights[0].dtype, bool(decoupled)):
        return []
    return [index for index, row in enumerate(zip(*lists)) if all([tensor.is_contiguous() for tensor in row])]


def update(weights, grads, means, squares, lr, betas, eps, step, bias_correction, decay, decoupled, found_inf=None):
    """Do the same as ``updates.adam``."""
    operation = torch._fused_adamw_ if decoupled else torch._fused_adam_
    if not bias_correction:
        step = float("inf")  # makes both corrections 1
    if not isinstance(step, torch.Tensor):
        step = torch.full((), step, dtype=torch.float32, device=weights[0].device)
    steps = [step.to(torch.float32)] * len(weights)
    options = {"lr": float(lr), "beta1": betas[0], "beta2": betas[1], "weight_decay": float(decay), "eps": float(eps)}
    options.update(amsgrad=False, maximize=False, grad_scale=None, found_inf=found_inf)
    operation(weights, grads, means, squares, [], steps, **options)


@tried_once
def _is_available(device, dtype, decoupled):
    """Return whether the operation exists for a device and dtype and is right without bias correction; tested once."""
    weight, grad = torch.full((1,), 2.0, dtype=dtype, device=device), torch.ones(1, dtype=dtype, device=device)
    mean, square = torch.zeros_like(grad), torch.zeros_like(grad)
    try:
        update([weight], [grad], [mean], [square], 0.5, (0.5, 0.5), 0.0, 1, False, 0.1, decoupled)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):  # torch < 2.0; no CPU kernel before 2.4
        return False
    return abs(weight.item() - ((1.9 if decoupled else 2.0) - 0.5 * 0.5**0.5)) < 1e-5
