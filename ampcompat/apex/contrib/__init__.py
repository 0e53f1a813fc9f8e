"""The parts of ``apex.contrib`` that scripts import: a loss, gradient clipping, a layer norm; each on any device."""

import torch

from ...errors import AmpError
from ...support import tensor_lists
from ..multi_tensor import foreach_ops
from ..normalization import FusedLayerNorm


class SoftmaxCrossEntropyLoss(torch.autograd.Function):
    """``SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing=0.0, padding_idx=0, half_to_float=False)``.

    Softmax cross entropy with label smoothing, without a float32 copy of the logits. As in Apex, ``padding_idx`` is 0
    by default; pass another value if 0 is a class. For C classes and p = softmax(logits) (Szegedy et al. 2016):

        loss = (1 - smoothing) * -log p[label] + smoothing * mean over classes of -log p
        gradient of the logits = p - (1 - smoothing) * [class is label] - smoothing / C
    """

    @staticmethod
    def forward(ctx, logits, labels, smoothing=0.0, padding_idx=0, half_to_float=False):
        """Return the loss of each row.

        Args:
            logits: a floating-point tensor of shape (rows, classes).
            labels: classes, of shape (rows,).
            smoothing: the share of the label that is spread over all classes.
            padding_idx: rows with this label have no loss and no gradient.
            half_to_float: return float32 losses for half logits; otherwise losses have the dtype of the logits.
        """
        logits_upcast = logits.detach().to(foreach_ops.compute_dtype(logits.dtype))
        normalizers = torch.logsumexp(logits_upcast, 1)
        is_counted = labels != padding_idx
        target_classes = labels * is_counted  # a padding label need not be a class
        losses = normalizers - (1.0 - smoothing) * logits_upcast.gather(1, target_classes.unsqueeze(1)).squeeze(1)
        if smoothing:
            losses = losses - smoothing * logits_upcast.mean(1)
        losses = torch.where(is_counted, losses, torch.zeros_like(losses))
        ctx.save_for_backward(logits, normalizers, target_classes, is_counted)
        ctx.smoothing = smoothing
        return losses if half_to_float else losses.to(logits.dtype)

    @staticmethod
    def backward(ctx, grad_losses):
        """Return the gradient of the logits, in their dtype."""
        logits, normalizers, labels, is_counted = ctx.saved_tensors
        grads = (logits.to(normalizers.dtype) - normalizers.unsqueeze(1)).exp_()
        if ctx.smoothing:
            grads -= ctx.smoothing / logits.shape[1]
        share = torch.full_like(normalizers, ctx.smoothing - 1.0).unsqueeze(1)
        grads.scatter_add_(1, labels.unsqueeze(1), share)
        weights = torch.where(is_counted, grad_losses.to(grads.dtype), torch.zeros_like(normalizers))
        return (grads * weights.unsqueeze(1)).to(logits.dtype), None, None, None, None


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scale gradients in place so that their joint norm is at most ``max_norm``; return the norm before.

    The norm of half gradients is computed and returned in float32, because it would overflow at 65504 in float16.

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


class FastLayerNorm(FusedLayerNorm):
    """``FusedLayerNorm`` over the last dimension, of any size ``hidden_size``; Apex supports about sixty sizes."""

    def __init__(self, hidden_size, eps=1e-5, memory_efficient=False):
        super().__init__(hidden_size, eps, memory_efficient=memory_efficient)
        self.epsilon = eps
