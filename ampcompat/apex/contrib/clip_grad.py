"""Gradient clipping by the joint norm: ``apex.contrib.clip_grad.clip_grad_norm_``.

The norm of half gradients is computed and returned in float32, because it would overflow at 65504 in float16.
"""

import torch

from ...errors import AmpError
from ...support import tensor_lists
from ..multi_tensor import foreach_ops


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scale gradients in place so that their joint norm is at most ``max_norm``; return the norm before.

    Args:
        parameters: params, or one; those without gradients are ignored.
        max_norm: the limit.
        norm_type: the order of the norm; ``float("inf")`` for the largest absolute value.
        error_if_nonfinite: raise if the norm is inf or nan; this synchronizes with the device.

    Returns:
        A tensor of shape (), on the device of the first gradient.

    Raises:
        AmpError: the norm is inf or nan, and ``error_if_nonfinite`` is true.
    """
    params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grads = [param.grad.detach() for param in params if param.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    groups = tensor_lists.grouped(grads)
    with torch.no_grad():
        total = foreach_ops.total_norm(groups, float(norm_type))
        if error_if_nonfinite and not tensor_lists.all_finite(total):
            raise AmpError(
                f"clip_grad_norm_: the {norm_type}-norm of the gradients is {total.item()}, so they cannot be clipped. "
                "With error_if_nonfinite=False they are scaled anyway."
            )
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for group in groups:
            foreach_ops.scale_(group, factor.to(group[0].device))
    return total
