"""A function of Apex's ``amp`` that unscales gradients, for clients that replace parts of it."""


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
