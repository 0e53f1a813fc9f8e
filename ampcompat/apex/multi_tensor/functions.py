"""The functions of ``amp_C``, with Apex's signatures. The formulas are in ``updates``.

Those on lists have the arguments ``(chunk_size, noop_flag, tensor_lists, ...)``. ``chunk_size`` has no effect.
``noop_flag`` is an integer tensor of one element. ``multi_tensor_scale``, ``_axpby`` and ``_l2norm*`` set it to 1 if
they find inf or nan, and still write their results. Functions that update weights do nothing if it is set; if torch
supports this, the flag is evaluated on the device.

Lists may mix dtypes and devices. Each function computes in at least float32 and rounds once, when it writes to the
given tensors.
"""

import torch

from ...support import tensor_lists as tensors
from ...support.torch_compat.thread_blocks import grad_enabled
from . import foreach_ops, updates


def multi_tensor_scale(chunk_size, noop_flag, tensor_lists, scale):
    """``out = in * scale`` for the lists ``[in, out]``; flags inf and nan in ``in``."""
    with grad_enabled(False):
        for _, (sources, targets) in foreach_ops.split_by_dtype(tensor_lists):
            sources = foreach_ops.upcast(sources)
            foreach_ops.flag_non_finite(noop_flag, sources)
            tensors.copy_(targets, foreach_ops.scaled(sources, scale))


def scale_check_overflow(input, scale, overflow_buf, output):
    """``multi_tensor_scale`` for one tensor, into ``output``, with Apex's arguments from before March 2019."""
    multi_tensor_scale(None, overflow_buf, [[input], [output]], scale)


def multi_tensor_axpby(chunk_size, noop_flag, tensor_lists, a, b, arg_to_check=-1):
    """``out = a * x + b * y`` for the lists ``[x, y, out]``; flags inf and nan in x (0), y (1) or both (-1)."""
    with grad_enabled(False):
        for _, (xs, ys, targets) in foreach_ops.split_by_dtype(tensor_lists):
            xs, ys = foreach_ops.upcast(xs), foreach_ops.upcast(ys)
            for index, operands in enumerate((xs, ys)):
                if arg_to_check in (index, -1):
                    foreach_ops.flag_non_finite(noop_flag, operands)
            results = foreach_ops.mul(xs, a)
            foreach_ops.add_(results, foreach_ops.mul(ys, b))
            tensors.copy_(targets, results)


def multi_tensor_l2norm(chunk_size, noop_flag, tensor_lists, per_tensor=False):
    """Return (joint 2-norm of the list ``[xs]``, 2-norm of each tensor if ``per_tensor``, else empty), both float32."""
    return _norms(noop_flag, tensor_lists[0], 1.0, per_tensor)


multi_tensor_l2norm_mp = multi_tensor_l2norm


def multi_tensor_l2norm_scale(chunk_size, noop_flag, tensor_lists, scale, per_tensor=False):
    """``multi_tensor_scale`` for the lists ``[xs, outs]``; return ``multi_tensor_l2norm`` of the unscaled xs."""
    multi_tensor_scale(chunk_size, noop_flag, tensor_lists, scale)
    return _norms(noop_flag, tensor_lists[0], 1.0, per_tensor)


def multi_tensor_unscale_l2norm(chunk_size, noop_flag, tensor_lists, inv_scale, per_tensor=False):
    """Return ``multi_tensor_l2norm`` of ``[xs]`` times ``inv_scale``, a tensor of one element; xs are not modified."""
    return _norms(noop_flag, tensor_lists[0], inv_scale.to(noop_flag.device).reshape(()), per_tensor)


def _norms(noop_flag, xs, factor, per_tensor):
    """Return the result of ``multi_tensor_l2norm``, times ``factor``."""
    with grad_enabled(False):
        device = noop_flag.device
        norms = torch.zeros(len(xs), dtype=torch.float32, device=device)
        for rows, (batch,) in foreach_ops.split_by_dtype([xs]):
            norms[rows] = foreach_ops.norms(foreach_ops.upcast(batch)).to(device, torch.float32)
        norms = norms * factor
        total = norms.norm().reshape(1)
        foreach_ops.flag_non_finite(noop_flag, [total])
        return total, norms if per_tensor else torch.empty(0, dtype=torch.float32, device=device)


def multi_tensor_sgd(
    chunk_size, noop_flag, tensor_lists, wd, momentum, dampening, lr, nesterov, first_run, wd_after_momentum, scale=1.0
):
    """SGD on ``[gradients, params, buffers]``, and a fourth list of half copies; ``scale`` multiplies gradients."""
    options = (lr, momentum, dampening, nesterov, wd, wd_after_momentum, first_run)

    def update_batch(gradients, params, buffers, found_inf):
        updates.sgd(params, foreach_ops.multiplied(gradients, scale), buffers, *options, found_inf=found_inf)

    # In the first run, the buffers may be uninitialized, so a weighted sum with them is wrong. The host reads the flag.
    foreach_ops.update(noop_flag, tensor_lists, 3, update_batch, on_device=not first_run)


def multi_tensor_adam(
    chunk_size, noop_flag, tensor_lists, lr, beta1, beta2, eps, step, mode, bias_correction, weight_decay
):
    """Adam on ``[gradients, params, means, squares]``; ``mode`` 1 decouples the decay, 0 adds it to the gradients."""
    options = (lr, beta1, beta2, eps, step, mode, bias_correction, weight_decay)
    multi_tensor_adam_capturable(chunk_size, noop_flag, tensor_lists, *options, inv_scale=None)


def multi_tensor_adam_capturable(
    chunk_size, noop_flag, tensor_lists, lr, beta1, beta2, eps, step, mode, bias_correction, weight_decay, inv_scale
):
    """``multi_tensor_adam`` with ``lr``, ``step`` and ``inv_scale``, a factor for the gradients, as tensors."""
    lr, step, inv_scale = map(foreach_ops.to_scalar, (lr, step, inv_scale))
    options = (lr, (beta1, beta2), eps, step, bias_correction, weight_decay, mode == 1)

    def update_batch(gradients, params, means, squares, found_inf):
        gradients = foreach_ops.multiplied(gradients, inv_scale)
        updates.adam(params, gradients, means, squares, *options, found_inf=found_inf)

    foreach_ops.update(noop_flag, tensor_lists, 4, update_batch)


def multi_tensor_adam_capturable_master(chunk_size, noop_flag, tensor_lists, *options):
    """``multi_tensor_adam_capturable`` on ``[gradients, half params, means, squares, float32 params]``."""
    gradients, halves, means, squares, masters = tensor_lists
    multi_tensor_adam_capturable(chunk_size, noop_flag, [gradients, masters, means, squares, halves], *options)


def multi_tensor_adagrad(chunk_size, noop_flag, tensor_lists, lr, epsilon, mode, weight_decay):
    """Adagrad on ``[gradients, params, sums]``; ``mode`` 1 decouples the decay."""

    def update_batch(gradients, params, sums, found_inf):
        updates.adagrad(params, gradients, sums, lr, epsilon, weight_decay, mode == 1, found_inf)

    foreach_ops.update(noop_flag, tensor_lists, 3, update_batch)


def multi_tensor_novograd(
    chunk_size,
    noop_flag,
    tensor_lists,
    grad_norms,
    lr,
    beta1,
    beta2,
    epsilon,
    step,
    bias_correction,
    weight_decay,
    grad_averaging,
    moment_mode,
    norm_type,
):
    """NovoGrad on ``[gradients, params, means]``; ``grad_norms`` (one element per tensor) is updated too.

    ``moment_mode`` 0 includes norm and decay in the mean, 1 does not; ``norm_type`` is 2, or 0 for the largest absolute
    value.
    """
    order = 2 if norm_type == 2 else float("inf")
    options = (lr, (beta1, beta2), epsilon, step, bias_correction, weight_decay, grad_averaging, moment_mode == 0)
    with grad_enabled(False):
        for rows, batch, found_inf in foreach_ops.unflagged_batches(noop_flag, tensor_lists):
            gradients, params, means = map(foreach_ops.upcast, batch)
            old_moments = grad_norms[rows]
            norms = foreach_ops.norms(gradients, order).to(grad_norms.device, grad_norms.dtype)
            moments = updates.update_moments(old_moments, norms, beta2, order)
            if found_inf is not None:
                moments = torch.where(found_inf.to(grad_norms.device) != 0, old_moments, moments)
            grad_norms[rows] = moments
            moments = moments.to(params[0].device, params[0].dtype)
            updates.novograd(params, gradients, means, moments, *options, found_inf=found_inf)
            foreach_ops.write_back(batch[1:], (params, means))


def multi_tensor_lamb(
    chunk_size,
    noop_flag,
    tensor_lists,
    lr,
    beta1,
    beta2,
    epsilon,
    step,
    bias_correction,
    weight_decay,
    grad_averaging,
    mode,
    global_grad_norm,
    max_grad_norm,
    use_nvlamb=False,
    found_inf=None,
    inv_scale=None,
):
    """LAMB on ``[gradients, params, means, squares]``, gradients clipped by ``global_grad_norm`` (a tensor) first.

    Any number may be a tensor. Nothing changes if ``found_inf`` is 1. Gradients are multiplied by ``inv_scale``;
    ``global_grad_norm`` and ``max_grad_norm`` are those of the gradients before that. An optional fifth list has half
    copies of the params.
    """
    modes = {"grad_averaging": grad_averaging, "decoupled": mode == 1, "nvlamb": use_nvlamb}
    lr, step, inv_scale = map(foreach_ops.to_scalar, (lr, step, inv_scale))
    divisor = updates.clip_divisor(foreach_ops.to_scalar(global_grad_norm), float(max_grad_norm))
    options = (lr, (beta1, beta2), epsilon, step, bias_correction, weight_decay)

    def update_batch(gradients, params, means, squares, found_inf):
        gradients = foreach_ops.multiplied(gradients, inv_scale)
        updates.lamb(
            params, gradients, means, squares, divisor.to(params[0].device), *options, found_inf=found_inf, **modes
        )

    foreach_ops.update(noop_flag if found_inf is None else found_inf, tensor_lists, 4, update_batch)


multi_tensor_lamb_mp = multi_tensor_lamb


def multi_tensor_lamb_stage1_cuda(
    chunk_size,
    noop_flag,
    tensor_lists,
    per_tensor_decay,
    step,
    beta1,
    beta2,
    epsilon,
    global_grad_norm,
    max_global_grad_norm,
):
    """The first half of LAMB, on ``[gradients, params, means, squares, updates]``; ``step`` counts from 0."""
    with grad_enabled(False):
        # The host reads the flag: the list of updates, an output for the second stage, may be uninitialized.
        for rows, batch, _ in foreach_ops.unflagged_batches(noop_flag, tensor_lists, on_device=False):
            gradients, params, means, squares = map(foreach_ops.upcast, batch[:4])
            norm = foreach_ops.to_scalar(global_grad_norm).to(params[0].device)
            gradients = foreach_ops.scaled(gradients, 1.0 / updates.clip_divisor(norm, max_global_grad_norm))
            options = ((beta1, beta2), 1.0 - beta1, epsilon, step + 1, True, 0.0, True)
            found = updates.adam_direction(params, gradients, means, squares, *options)
            decays = list(per_tensor_decay[rows].to(params[0].device).unbind())
            foreach_ops.add_(found, foreach_ops.mul(params, decays))
            foreach_ops.write_back(batch[2:4], (means, squares))
            tensors.copy_(batch[4], found)


def multi_tensor_lamb_stage2_cuda(
    chunk_size,
    noop_flag,
    tensor_lists,
    per_tensor_param_norm,
    per_tensor_update_norm,
    lr,
    weight_decay,
    use_nvlamb=False,
):
    """The second half of LAMB, on ``[params, updates]``: ``params -= lr * ratio * updates``."""
    with grad_enabled(False):
        for rows, batch, found_inf in foreach_ops.unflagged_batches(noop_flag, tensor_lists):
            params, found = map(foreach_ops.upcast, batch)
            found = foreach_ops.mul(found, 1.0)
            if weight_decay or use_nvlamb:
                ratios = updates.trust_ratios(per_tensor_param_norm[rows], per_tensor_update_norm[rows])
                foreach_ops.mul_(found, list(ratios.to(params[0].device).unbind()))
            foreach_ops.subtract_(params, found, lr, found_inf)
            foreach_ops.write_back(batch[:1], (params,))


#: The functions of ``amp_C``.
__all__ = [name for name in dir() if name.startswith("multi_tensor_")]
__all__ += ["update_scale_hysteresis", "scale_check_overflow"]


class MultiTensorApply:
    """Calls functions of ``amp_C`` with the chunk size, which has no effect here, as the first argument."""

    def __init__(self, chunk_size):
        self.chunk_size = chunk_size

    @property
    def available(self):
        """Whether every function of ``amp_C`` that users of Apex call exists."""
        # Checked at each call, because libraries branch on it.
        return all(callable(globals().get(name)) for name in __all__)

    def check_avail(self):
        """Raise if ``available`` is false."""
        if not self.available:
            raise RuntimeError("some functions of amp_C are missing")

    def __call__(self, op, noop_flag_buffer, tensor_lists, *args):
        """Return the result of ``op(chunk_size, noop_flag_buffer, tensor_lists, *args)``."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)


def flatten(tensors):
    """Return the elements of all tensors as one contiguous tensor of one dimension."""
    return torch.cat([tensor.contiguous().reshape(-1) for tensor in tensors])


def unflatten(flat, tensors):
    """Return views of the first elements of ``flat`` with the shapes of ``tensors``, in order."""
    views, start = [], 0
    for tensor in tensors:
        views.append(flat.narrow(0, start, tensor.numel()).view(tensor.shape))
        start += tensor.numel()
    return tuple(views)


#: The smallest positive float32 number that is not subnormal.
_SMALLEST = torch.finfo(torch.float32).tiny


def update_scale_hysteresis(
    current_scale,
    growth_tracker,
    hysteresis_tracker,
    found_inf,
    growth_factor,
    backoff_factor,
    growth_interval,
    hysteresis,
):
    """Update a loss scale and its counts in place, on their device, and return the scale. Nothing is read by the host.

    Each overflow decrements the number of tolerated ones, which starts at ``hysteresis``; at 0, the scale is reduced. A
    step without overflow resets the number. After ``growth_interval`` consecutive steps without overflow, the scale
    grows, unless it would become inf. A scale that would become subnormal becomes 0, as in Apex.

    Args:
        current_scale: the scale; a float32 tensor of one element.
        growth_tracker: consecutive steps without overflow; an int32 tensor of one element.
        hysteresis_tracker: overflows that are still tolerated, including the one that reduces the scale; likewise.
        found_inf: a float32 tensor of one element, greater than 0 after an overflow.
        growth_factor, backoff_factor: the factors of the scale.
        growth_interval, hysteresis: counts.
    """
    with grad_enabled(False):
        overflowed = found_inf.to(current_scale.device).reshape(current_scale.shape) > 0
        left = hysteresis_tracker - overflowed.to(hysteresis_tracker.dtype)
        hysteresis_tracker.copy_(torch.where(overflowed, left, torch.full_like(left, hysteresis)))
        good = torch.where(overflowed, torch.zeros_like(growth_tracker), growth_tracker + 1)
        grows = good == growth_interval
        growth_tracker.copy_(torch.where(grows, torch.zeros_like(good), good))
        wide = current_scale.to(torch.float64)  # one rounding, as for a product in double precision
        grown = (wide * growth_factor).to(current_scale.dtype)
        grows = grows & (grown - grown == 0)
        backed_off = (wide * backoff_factor).to(current_scale.dtype)
        backed_off = torch.where(backed_off < _SMALLEST, torch.zeros_like(backed_off), backed_off)
        unless_grown = torch.where(overflowed & (left <= 0), backed_off, current_scale)
        return current_scale.copy_(torch.where(grows, grown, unless_grown))
