"""The functions of Apex's ``syncbn`` extension: the parts of a batch norm over several processes.

``input`` and ``grad_output`` have shape (N, C, ...), or (..., C) for the functions named ``c_last``, in float32,
float64 or a half dtype. Statistics have shape (C,), in float32 at least; ``weight`` and ``shift`` too, or are None.
The caller gathers the statistics of all ranks, and sums ``sum_dy`` and ``sum_dy_xmu`` over them.

The formulas (Ioffe and Szegedy, 2015), with dy the gradient of the output and n the number of values per channel:

    normal = (input - mean) * inv_std               output = normal * weight + shift
    sum_dy = sum of dy                              sum_dy_xmu = sum of dy * (input - mean)
    gradient of shift = sum_dy                      gradient of weight = sum_dy_xmu * inv_std
    gradient of input = (dy - sum_dy / n - (input - mean) * inv_std**2 * sum_dy_xmu / n) * inv_std * weight
"""

import torch


def welford_mean_var(input):
    """Return [mean, biased variance] per channel."""
    with torch.no_grad():
        wide = _wide(input)
        count = max(wide.numel() // wide.shape[1], 1)  # an empty batch has the mean 0
        mean = _channel_sums(wide) / count
        return [mean, _channel_sums((wide - _per_channel(mean, wide)).pow(2)) / count]


def welford_parallel(mean_feature_nodes, var_biased_feature_nodes, numel, eps):
    """Return [mean, unbiased variance, 1 / sqrt(biased variance + eps)] over ranks.

    Args:
        mean_feature_nodes, var_biased_feature_nodes: ``welford_mean_var`` of each rank, of shape (ranks, C).
        numel: the count of values per channel on each rank, a tensor of shape (ranks,); or one number for all.
        eps: added to the variance.
    """
    with torch.no_grad():
        means = mean_feature_nodes
        counts = torch.as_tensor(numel, device=means.device).to(means.dtype).reshape(-1, 1).expand(len(means), 1)
        mean, variance, count = combined_mean_var(means, var_biased_feature_nodes, counts)
        return [mean, variance * count / (count - 1), torch.rsqrt(variance + eps)]


def combined_mean_var(means, variances, counts):
    """Return (mean, biased variance, count) of the joint batch of ranks; all arguments have a row per rank."""
    # Means and squared deviations are combined, since a sum of squares would lose digits.
    count = counts.sum(0)
    mean = (means * counts).sum(0) / count
    return mean, ((variances + (means - mean).pow(2)) * counts).sum(0) / count, count


def batchnorm_forward(input, mean, inv_std, weight, shift):
    """Return the output, in the dtype of ``input``."""
    with torch.no_grad():
        return normalized(input, mean, inv_std, weight, shift).to(input.dtype)


def reduce_bn(grad_output, input, mean, inv_std, weight):
    """Return [sum_dy, sum_dy_xmu, gradient of weight, gradient of shift] of this rank.

    Without a weight, the last two are empty.
    """
    with torch.no_grad():
        grad, centered = _wide(grad_output), _wide(input) - _per_channel(mean, input)
        sum_dy, sum_dy_xmu = _channel_sums(grad), _channel_sums(grad * centered)
        if weight is None:
            return [sum_dy, sum_dy_xmu, mean.new_empty(0), mean.new_empty(0)]
        return [sum_dy, sum_dy_xmu, (sum_dy_xmu * inv_std).to(weight.dtype), sum_dy.to(weight.dtype)]


def batchnorm_backward(grad_output, input, mean, inv_std, weight, sum_dy, sum_dy_xmu, count=None):
    """Return the gradient of ``input``, in its dtype.

    Args:
        sum_dy, sum_dy_xmu: sums over all ranks; without ``count``, means, as in Apex before 2021.
        count: the counts of values per channel of all ranks; an integer tensor of shape (ranks,).
    """
    with torch.no_grad():
        if count is not None:
            total = count.sum().to(sum_dy)
            sum_dy, sum_dy_xmu = sum_dy / total, sum_dy_xmu / total
        scale = inv_std if weight is None else inv_std * weight.to(inv_std.dtype)
        centered = _wide(input) - _per_channel(mean, input)
        grad = (
            _wide(grad_output)
            - _per_channel(sum_dy, input)
            - centered * _per_channel(inv_std.pow(2) * sum_dy_xmu, input)
        )
        return (grad * _per_channel(scale, input)).to(input.dtype)


def welford_mean_var_c_last(input):
    """``welford_mean_var`` with channels last."""
    return welford_mean_var(_rows(input))


def batchnorm_forward_c_last(input, z, mean, inv_std, weight, shift, fuse_relu):
    """``batchnorm_forward`` with channels last, then plus ``z`` unless it is None, then relu if ``fuse_relu``."""
    with torch.no_grad():
        output = _sum_with(z, normalized(_rows(input), mean, inv_std, weight, shift))
        return (output.clamp(min=0) if fuse_relu else output).to(input.dtype).view(input.shape)


def reduce_bn_c_last(grad_output, input, mean, inv_std, weight):
    """``reduce_bn`` with channels last."""
    return reduce_bn(_rows(grad_output), _rows(input), mean, inv_std, weight)


def batchnorm_backward_c_last(grad_output, input, mean, inv_std, weight, sum_dy, sum_dy_xmu, count=None):
    """``batchnorm_backward`` with channels last."""
    statistics = (mean, inv_std, weight, sum_dy, sum_dy_xmu, count)
    return batchnorm_backward(_rows(grad_output), _rows(input), *statistics).view(input.shape)


def relu_bw_c_last(grad_output, input, z, mean, inv_std, weight, shift):
    """Return ``grad_output`` where ``batchnorm_forward_c_last`` is greater than 0 before its relu, and 0 elsewhere."""
    with torch.no_grad():
        output = _sum_with(z, normalized(_rows(input), mean, inv_std, weight, shift)).view(input.shape)
        return torch.where(output > 0, grad_output, torch.zeros_like(grad_output))


def _wide(tensor):
    return tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)


def _rows(tensor):
    """Return a tensor with channels last in the shape (N, C)."""
    return tensor.reshape(-1, tensor.shape[-1])


def _per_channel(per_channel, input):
    """Return a vector per channel in a shape that broadcasts over ``input``."""
    return per_channel.reshape((1, -1) + (1,) * (input.dim() - 2))


def _channel_sums(tensor):
    return tensor.sum([dimension for dimension in range(tensor.dim()) if dimension != 1])


def normalized(input, mean, inv_std, weight, shift):
    """Return the output in float32 at least; differentiable."""
    normal = (_wide(input) - _per_channel(mean, input)) * _per_channel(inv_std, input)
    if weight is not None:
        normal = normal * _per_channel(weight.to(normal.dtype), input)
    return normal if shift is None else normal + _per_channel(shift.to(normal.dtype), input)


def _sum_with(z, output):
    return output if z is None else output + _rows(z).to(output.dtype)
