"""Replacements for code that uses several GPUs in one process: DataParallel, ``comm``, torch's SyncBatchNorm.

The number of devices that a script gives is kept: ``scatter`` to [0, 1] returns two chunks, ``gather`` joins them, and
    the replicas of a module are called one after the other. Processes communicate through torch.distributed, with gloo.
"""

import torch

from ....support.torch_compat.thread_context import in_process_group


def data_parallel_init(target, original, self, module, device_ids=None, output_device=None, dim=0):
    """``DataParallel.__init__``, which queries CUDA devices. ``forward`` remains torch's."""
    torch.nn.Module.__init__(self)
    devices = range(target.count()) if device_ids is None else device_ids
    self.dim, self.device_ids = dim, [target.index(device) or 0 for device in devices]
    self.output_device = self.device_ids[0] if output_device is None else target.index(output_device) or 0
    self.src_device_obj = target.device()
    self.module = module.to(self.src_device_obj)


def data_parallel(target, original, module, inputs, device_ids=None, output_device=None, dim=0, module_kwargs=None):
    """``torch.nn.parallel.data_parallel``."""
    inputs = inputs if isinstance(inputs, tuple) else (inputs,) if inputs is not None else ()
    return module(*inputs, **(module_kwargs or {}))


def parallel_apply(target, original, modules, inputs, kwargs_tup=None, devices=None):
    """``torch.nn.parallel.parallel_apply``."""
    kwargs_tup = [{}] * len(modules) if kwargs_tup is None else kwargs_tup
    inputs = [given if isinstance(given, (list, tuple)) else (given,) for given in inputs]
    return [module(*given, **kwargs) for module, given, kwargs in zip(modules, inputs, kwargs_tup)]


# -- copies between the GPUs of one process ----------------------------------------------------------------------------


def comm(target, original, *args, **kwargs):
    """A function of ``torch.nn.parallel.comm`` (``torch.cuda.comm``)."""
    return COMM[original.__name__](target, *args, **kwargs)


def _moved(target, tensor):
    return tensor.to(target.device())


def _broadcast(target, tensor, devices=None, *, out=None):
    if out is not None:
        return tuple(each.copy_(tensor) for each in out)
    tensor = _moved(target, tensor)
    return (tensor,) + tuple(tensor.clone() for _ in list(devices)[1:])


def _broadcast_coalesced(target, tensors, devices, buffer_size=10485760):
    by_tensor = [_broadcast(target, tensor, devices) for tensor in tensors]
    return [[copies[number] for copies in by_tensor] for number in range(len(devices))]


def _reduce_add(target, inputs, destination=None):
    return _moved(target, torch.stack(list(inputs)).sum(0)) if len(inputs) > 1 else _moved(target, inputs[0])


def _reduce_add_coalesced(target, inputs, destination=None, buffer_size=10485760):
    return tuple(_reduce_add(target, tensors) for tensors in zip(*inputs))


def _scatter(target, tensor, devices=None, chunk_sizes=None, dim=0, streams=None, *, out=None):
    tensor, count = _moved(target, tensor), len(devices if out is None else out)
    chunks = tensor.chunk(count, dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    if out is None:
        return tuple(chunks)
    return tuple(each.copy_(chunk) for each, chunk in zip(out, chunks))


def _gather(target, tensors, dim=0, destination=None, *, out=None):
    gathered = _moved(target, torch.cat([tensor.view(1) if tensor.dim() == 0 else tensor for tensor in tensors], dim))
    return gathered if out is None else out.copy_(gathered)


#: The functions of ``torch.nn.parallel.comm``.
COMM = {
    "broadcast": _broadcast,
    "broadcast_coalesced": _broadcast_coalesced,
    "reduce_add": _reduce_add,
    "reduce_add_coalesced": _reduce_add_coalesced,
    "scatter": _scatter,
    "gather": _gather,
}

# The same as autograd functions: the code above is differentiable, and torch's own classes need a GPU.


def scatter_apply(target, original, devices, sizes, dim, input):
    """``Scatter.apply``."""
    return _scatter(target, input, devices, sizes, dim)


def gather_apply(target, original, device, dim, *inputs):
    """``Gather.apply``."""
    return _gather(target, inputs, dim)


def broadcast_apply(target, original, devices, *inputs):
    """``Broadcast.apply``: one tuple of the copies for the first device, then those for the next."""
    return tuple(each for copies in _broadcast_coalesced(target, inputs, devices) for each in copies)


def sync_batch_norm_forward(target, original, self, input):
    """``forward`` of torch's SyncBatchNorm, which needs a GPU, by that of Apex's SyncBatchNorm."""
    if not (self.training and in_process_group() and target.is_on_target(input)):
        return torch.nn.modules.batchnorm._BatchNorm.forward(self, input)
    from ....apex.parallel.sync_batchnorm import SyncBatchNorm

    replacement = SyncBatchNorm.__new__(SyncBatchNorm)
    vars(replacement).update(vars(self), channel_last=False, fuse_relu=False)  # the same params and statistics
    replacement.process_group = vars(self).get("process_group")
    return replacement(input)
