"""Gradient clipping by the joint norm.

Owns: ``clip_grad_norm_``.
Must not touch: params.
The surprise: the norm of half gradients is computed and returned in float32, where half would overflow at 65504.
"""

import torch

from ...errors import AmpError
from ...parts import tensors
from ..multi_tensor import lists


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scale gradients in place so that their joint norm is at most ``max_norm``, and return what it was.

    Args:
        parameters: params, or one; those without gradients do not count.
        max_norm: the limit.
        norm_type: the order of the norm; ``float("inf")`` for the largest absolute value.
        error_if_nonfinite: raise where the norm is inf or nan, which waits for the device.

    Returns:
        A tensor of shape (), on the device of the first gradient.

    Raises:
        AmpError: the norm is inf or nan, and ``error_if_nonfinite``.
    """
    params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grads = [param.grad.detach() for param in params if param.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    groups, order = tensors.grouped(grads), float(norm_type)
    with torch.no_grad():
        total = _joined([lists.norms(alike, order) for alike in groups], order)
        if error_if_nonfinite and not tensors.all_finite(total):
            raise AmpError(
                "clip_grad_norm_: the {}-norm of the gradients is {}, so they cannot be clipped. With "
                "error_if_nonfinite=False they are scaled all the same.".format(norm_type, total.item())
            )
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for alike in groups:
            lists.scale_(alike, factor.to(alike[0].device))
    return total


def _joined(norms, order):
    """Return the norm over tensors whose norms are given, as tensors of one dimension on several devices."""
    widest = max((each.dtype for each in norms), key=lambda dtype: torch.finfo(dtype).bits)
    together = torch.cat([each.to(norms[0].device, widest) for each in norms])
    return together.max() if order == float("inf") else together.norm(order)
