"""Softmax cross entropy with label smoothing, without a float32 copy of the logits.

The result is one loss per row, without reduction. As in Apex, ``padding_idx`` (the label that has no loss) is 0 by
default; pass another value if 0 is a class.

The formula (Szegedy et al. 2016), for C classes and p = softmax(logits):

    loss = (1 - smoothing) * -log p[label] + smoothing * mean over classes of -log p
    gradient of the logits = p - (1 - smoothing) * [class is label] - smoothing / C
"""

import torch

from ..multi_tensor import foreach_ops


class SoftmaxCrossEntropyLoss(torch.autograd.Function):
    """``SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing=0.0, padding_idx=0, half_to_float=False)``."""

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
