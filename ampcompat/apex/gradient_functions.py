"""Functions of Apex's ``amp`` that unscale gradients, for clients that replace parts of it."""

import torch


def post_backward_models_are_masters(scaler, params, stashed_grads, scale_override=None):
    """Unscale the gradients of params that are their own masters, and add those of earlier passes.

    Clients that replace ``optimizer._post_amp_backward`` call it.

    Args:
        scaler: the ``LossScaler``.
        params: the params.
        stashed_grads: for each param, its gradient of earlier passes or None. The list is filled with None.
        scale_override: ``(scale of the gradients, scale of the earlier ones, scale of the result)``.
    """
    scale, earlier_scale, result_scale = scale_override or (scaler.loss_scale(), 1.0, 1.0)
    for index, (param, stashed) in enumerate(zip(params, stashed_grads)):
        if param.grad is None:
            param.grad = stashed
        elif stashed is None:
            scaler.unscale([param.grad], [param.grad], None, True, scale_override=scale / result_scale)
        else:
            scales = (scale, earlier_scale, result_scale)
            scaler.unscale_with_stashed([param.grad], [stashed], [param.grad], scale_override=scales)
        stashed_grads[index] = None


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
