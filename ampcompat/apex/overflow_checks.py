"""The functions of Apex's ``amp.scaler`` that scale one gradient and return whether it overflowed."""

import torch


def scale_check_overflow_python(model_grad, master_grad, scale, check_overflow=None):
    """Write ``model_grad * scale`` into ``master_grad``, which may be the same tensor, unless it has overflowed.

    Scripts from before April 2019 pass ``(model_grad, scale, master_grad)``, which checks for overflows by default.

    Args:
        model_grad, master_grad: floating-point tensors of the same shape.
        scale: a number.
        check_overflow: check for inf and nan; False by default.

    Returns:
        Whether ``model_grad`` has inf or nan, if that is checked. If so, ``master_grad`` is not changed.
    """
    is_old_order = not isinstance(master_grad, torch.Tensor)
    if is_old_order:
        master_grad, scale = scale, master_grad
    if (is_old_order if check_overflow is None else check_overflow) and _has_overflowed(model_grad):
        return True
    if master_grad is not model_grad:
        master_grad.copy_(model_grad)
    if scale != 1.0:
        master_grad.mul_(scale)
    return False


def axpby_check_overflow_python(model_grad, stashed_grad, master_grad, a, b, check_overflow=False):
    """Write ``a * model_grad + b * stashed_grad`` into ``master_grad``, unless ``model_grad`` has overflowed.

    Args:
        model_grad, stashed_grad, master_grad: floating-point tensors of the same shape.
        a, b: numbers.
        check_overflow: check for inf and nan.

    Returns:
        As ``scale_check_overflow_python``.
    """
    if check_overflow and _has_overflowed(model_grad):
        return True
    master_grad.data = a * model_grad.data.to(master_grad.dtype) + b * stashed_grad.data
    return False


def _has_overflowed(grad):
    return not bool(torch.isfinite(grad.detach()).all())
