"""``SyncBatchNorm``: batch norm over the joint batch of several processes; also ``convert_syncbn_model``.

Ranks may have batches of different sizes, even empty ones: counts are exchanged together with the statistics. The
gradients of weight and bias are those of this rank; DistributedDataParallel averages them.

The formulas (Ioffe and Szegedy, 2015), with dy the gradient of the output and n the number of values per channel:

    normal = (input - mean) * inv_std               output = normal * weight + bias
    sum_dy = sum of dy                              sum_dy_xmu = sum of dy * (input - mean)
    gradient of bias = sum_dy                       gradient of weight = sum_dy_xmu * inv_std
    gradient of input = (dy - sum_dy / n - (input - mean) * inv_std**2 * sum_dy_xmu / n) * inv_std * weight
"""

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from ...errors import AmpValueError
from ...support.torch_compat.thread_context import in_process_group


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """Batch norm of any input with channels in dimension 1, normalized over the processes of a group.

    Args:
        num_features, eps, momentum, affine, track_running_stats: as for ``torch.nn.BatchNorm2d``.
        process_group: the ranks that share statistics; None means all of them.
        channel_last: the input's channels are its last dimension.
        fuse_relu: apply a relu, after adding ``z`` if it is passed to ``forward``.
    """

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        process_group=None,
        channel_last=False,
        fuse_relu=False,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_group = process_group
        self.channel_last = channel_last
        self.fuse_relu = fuse_relu

    def forward(self, input, z=None):
        """Normalize ``input``, then add ``z`` if given and apply relu if ``fuse_relu``; return the input's dtype."""
        self._check_input_dim(input)
        channels_first = input.transpose(1, -1) if self.channel_last and input.dim() > 2 else input
        output = self._normalized(channels_first)
        if channels_first is not input:
            output = output.transpose(1, -1)
        if z is not None:
            output = output + z
        return torch.relu(output) if self.fuse_relu else output

    @property
    def process_group(self):
        """The ranks that share statistics; None means all of them."""
        return self._group_reference.group

    @process_group.setter
    def process_group(self, group):
        self._group_reference = _GroupReference(group)

    def specify_process_group(self, process_group):
        """Set the ranks that share statistics."""
        self.process_group = process_group

    def _check_input_dim(self, input):
        channels = input.shape[-1 if self.channel_last else 1] if input.dim() > 1 else None
        if channels != self.num_features:
            raise AmpValueError(
                "SyncBatchNorm of {} channels got an input of shape {}{}.".format(
                    self.num_features, tuple(input.shape), ", channels last" if self.channel_last else ""
                )
            )

    def _normalized(self, input):
        if not self.training and self.running_mean is not None:
            settings = self.running_mean, self.running_var, self.weight, self.bias
            if input.dtype is self.running_mean.dtype and input.numel():  # torch 1.3 crashes on an empty batch
                return torch.nn.functional.batch_norm(input, *settings, training=False, eps=self.eps)
            return _normalize(input, *settings, eps=self.eps)
        output, mean, variance, count = _SyncNorm.apply(input, self.weight, self.bias, self.eps, self._group())
        if self.training and self.running_mean is not None:
            self._update_running_stats(mean, variance, count)
        return output

    def _group(self):
        """Return the process group that shares statistics, or None for no sharing."""
        if not in_process_group():
            return None
        return dist.group.WORLD if self.process_group is None else self.process_group

    @torch.no_grad()
    def _update_running_stats(self, mean, variance, count):
        self.num_batches_tracked += 1
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.mul_(1 - momentum).add_(new.to(running.dtype) * momentum)


class _GroupReference:
    """A process group that is shared by copies of a module and not pickled."""

    def __init__(self, group):
        self.group = group

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return _GroupReference, (None,)


class _SyncNorm(torch.autograd.Function):
    """``(input, weight, bias, eps, group)`` to ``(output, mean, biased variance, count)`` of the joint batch."""

    @staticmethod
    def forward(ctx, input, weight, bias, eps, group):
        mean, variance, count = _joint_statistics(input.to(_compute_dtype(input, weight)), group)
        output = _normalize(input, mean, variance, weight, bias, eps)
        ctx.group, ctx.has_bias = group, bias is not None
        ctx.save_for_backward(input, mean, torch.rsqrt(variance + eps), weight, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return output, mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, *unused):
        input, mean, inv_std, weight, count = ctx.saved_tensors
        dy, xmu = grad_output.to(mean.dtype), input.to(mean.dtype) - _per_channel(mean, input)
        sum_dy, sum_dy_xmu = _channel_sums(dy), _channel_sums(dy * xmu)
        scale, grad_input, grad_weight, grad_bias = inv_std, None, None, None
        if weight is not None:
            scale, grad_weight = inv_std * weight.to(inv_std.dtype), (sum_dy_xmu * inv_std).to(weight.dtype)
            grad_bias = sum_dy.to(weight.dtype) if ctx.has_bias else None
        if ctx.needs_input_grad[0]:
            sums = torch.stack([sum_dy, sum_dy_xmu])
            if ctx.group is not None:
                dist.all_reduce(sums, group=ctx.group)
            mean_dy, mean_dy_xmu = sums / count.sum()
            centered = dy - _per_channel(mean_dy, input) - xmu * _per_channel(inv_std.pow(2) * mean_dy_xmu, input)
            grad_input = (centered * _per_channel(scale, input)).to(input.dtype)
        return grad_input, grad_weight, grad_bias, None, None


def _compute_dtype(input, weight):
    """Return the dtype to compute in: float32, or the wider one of input and weight."""
    dtypes = [tensor.dtype for tensor in (input, weight) if tensor is not None]
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _joint_statistics(input, group):
    """Return mean, biased variance and the count of values per channel over the batches of a group."""
    values = input.numel() // input.shape[1]
    mean = _channel_sums(input) / max(values, 1)  # an empty batch has the mean 0
    variance = _channel_sums((input - _per_channel(mean, input)).pow(2)) / max(values, 1)
    count = mean.new_full((1,), values)
    if group is None:
        return mean, variance, count
    own = torch.cat([mean, variance, count])
    ranks = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(ranks, own, group)
    means, variances, counts = torch.stack(ranks).split([len(mean), len(mean), 1], dim=1)
    # Means and squared deviations are combined, since a sum of squares would lose digits.
    count = counts.sum(0)
    mean = (means * counts).sum(0) / count
    return mean, ((variances + (means - mean).pow(2)) * counts).sum(0) / count, count


def _normalize(input, mean, variance, weight, bias, eps):
    """Return the output, in the dtype of ``input``; computed in ``_compute_dtype``."""
    dtype = _compute_dtype(input, weight)
    inv_std = torch.rsqrt(variance.to(dtype) + eps)
    normal = (input.to(dtype) - _per_channel(mean.to(dtype), input)) * _per_channel(inv_std, input)
    if weight is not None:
        normal = normal * _per_channel(weight.to(dtype), input)
    return (normal if bias is None else normal + _per_channel(bias.to(dtype), input)).to(input.dtype)


def convert_syncbn_model(module, process_group=None, channel_last=False):
    """Return ``module`` with every batch norm replaced by a ``SyncBatchNorm`` that has the same params and statistics.

    Existing optimizers remain valid, and a layer that is used in two places stays one layer. Instance norms are not
    replaced.
    """
    return _converted(module, process_group, channel_last, {})


def _converted(module, process_group, channel_last, done):
    if id(module) in done:
        return done[id(module)]
    result = done[id(module)] = module
    if _is_batch_norm(module):
        result = done[id(module)] = _from_batch_norm(module, process_group, channel_last)
    for name, child in list(module._modules.items()):
        if child is not None:
            result._modules[name] = _converted(child, process_group, channel_last, done)
    return result


def _is_batch_norm(module):
    instance_norm = torch.nn.modules.instancenorm._InstanceNorm  # a batch norm by inheritance in torch < 1.4
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(module, instance_norm)


def _from_batch_norm(norm, process_group, channel_last):
    sync = SyncBatchNorm(
        norm.num_features,
        norm.eps,
        norm.momentum,
        norm.affine,
        norm.track_running_stats,
        process_group,
        channel_last,
        getattr(norm, "fuse_relu", False),
    )
    sync._parameters.update(norm._parameters)
    sync._buffers.update(norm._buffers)
    return sync.train(norm.training)


def create_syncbn_process_group(group_size):
    """Return this rank's group of ``group_size`` consecutive ranks, or None (all ranks) for 0; call it on every rank.

    Raises:
        AmpValueError: the number of processes is not a multiple of ``group_size``.
    """
    if group_size == 0:
        return None
    world_size = dist.get_world_size()
    if not 0 < group_size <= world_size or world_size % group_size:
        raise AmpValueError(
            f"create_syncbn_process_group({group_size}) must divide the {world_size} processes into equal groups."
        )
    starts = range(0, world_size, group_size)
    groups = [dist.new_group(list(range(start, start + group_size))) for start in starts]
    return groups[dist.get_rank() // group_size]


def _per_channel(per_channel, input):
    """Return a vector per channel in a shape that broadcasts over ``input``."""
    return per_channel.reshape((1, -1) + (1,) * (input.dim() - 2))


def _channel_sums(tensor):
    return tensor.sum([dimension for dimension in range(tensor.dim()) if dimension != 1])
