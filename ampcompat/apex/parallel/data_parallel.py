"""Data parallelism in one process, with outputs and losses that stay on their devices.

torch's DataParallel gathers all outputs on the first GPU, where the loss is computed. With a vocabulary of 40,000, 250
tokens and a batch size of 32, these take 1.2 GB, and their gradients another 1.2 GB. Here, each GPU keeps its own
share. Tensors are moved by torch's scatter, replicate, parallel_apply and gather. The devices may be CPUs, also
repeated. The parts of a batch are then run one after another on copies of the module that share its params, which gives
the same results without a GPU.
"""

import torch
from torch.nn.parallel import parallel_apply, replicate, scatter_gather

from ...errors import AmpTypeError, AmpValueError
from ...support.containers import tensors_in

#: The reductions of a criterion, named as in torch.
MEAN, SUM, NONE = "mean", "sum", "none"


class DataParallelModel(torch.nn.DataParallel):
    """Runs a module on parts of a batch, one per device, and leaves each output where it is.

    Use it if one process has to use several GPUs because the script cannot be started once per GPU. Otherwise, prefer
    DistributedDataParallel (torch's or this package's): it does not replicate the model in every step, does not load
    the first GPU more than the others, and does not share one GIL. Call ``amp.initialize`` first, then wrap.

    Args:
        module: the module, on the first device.
        device_ids: GPUs (numbers or devices); or CPU devices, such as ``["cpu", "cpu"]``. None means all GPUs.
        dim: the dimension in which a batch is divided.

    Raises:
        AmpTypeError, AmpValueError: no module, no device, or both GPUs and CPU devices.
    """

    def __init__(self, module, device_ids=None, dim=0):
        if not isinstance(module, torch.nn.Module):
            raise AmpTypeError(f"DataParallelModel expected a torch.nn.Module, not {type(module).__name__}.")
        devices = _devices(device_ids)
        if _on_cpu(devices):
            torch.nn.Module.__init__(self)
            self.module, self.dim = module, dim
            self.device_ids, self.output_device = [], None
        else:
            super().__init__(module, device_ids=[device.index for device in devices], dim=dim)
        self.devices = devices

    def forward(self, *inputs, **kwargs):
        """Return a tuple of the outputs of the devices that got a part of the batch."""
        parts = _scatter(inputs, kwargs, self.devices, self.dim)
        return tuple(_apply(_replicas(self.module, self.devices[: len(parts)]), parts))


class DataParallelCriterion(torch.nn.Module):
    """Computes a loss on the devices of the outputs, and gathers only the losses.

    The result is the criterion's value on the whole batch if that is a mean or a sum over samples. For other
    reductions, such as a mean weighted by class, use ``reduction="sum"`` and divide the result yourself.

    Args:
        criterion: a module; ``criterion(output, *targets)``.
        device_ids: as for the ``DataParallelModel`` that computes the outputs.
        dim: the dimension in which targets are divided.
        reduction: "mean", weighted by the sizes of the parts, "sum" or "none"; None means ``criterion.reduction``, or
            "mean".
    """

    def __init__(self, criterion, device_ids=None, dim=0, reduction=None):
        super().__init__()
        self.module = criterion
        self.devices = _devices(device_ids)
        self.dim = dim
        self.reduction = reduction or getattr(criterion, "reduction", MEAN)
        if self.reduction not in (MEAN, SUM, NONE):
            raise AmpValueError(
                f"DataParallelCriterion reduces by {MEAN!r}, {SUM!r} or {NONE!r}, not {self.reduction!r}."
            )

    def forward(self, outputs, *targets, **kwargs):
        """Return the loss on the first output's device.

        Args:
            outputs: the outputs of the ``DataParallelModel``, one per device.
            targets: of the whole batch.
            kwargs: further arguments of the criterion, divided like the targets.
        """
        if not isinstance(outputs, (tuple, list)):
            raise AmpTypeError(
                "DataParallelCriterion expected the tuple of a DataParallelModel, one output per device, "
                f"not {type(outputs).__name__}."
            )
        if not targets and not kwargs:
            parts = [((), {}) for _ in outputs]
        else:
            parts = _scatter(targets, kwargs, self.devices, self.dim)
        if len(parts) != len(outputs):
            raise AmpValueError(
                f"DataParallelCriterion got {len(outputs)} outputs and targets for {len(parts)} devices: model and "
                "criterion need the same batch and the same device_ids."
            )
        calls = [(((output,) + tuple(args)), options) for output, (args, options) in zip(outputs, parts)]
        losses = _apply(_replicas(self.module, self.devices[: len(calls)]), calls)
        return self._reduced(losses, [_size(call, self.dim) for call in calls])

    def _reduced(self, losses, sizes):
        device = losses[0].device
        if self.reduction == NONE:
            return torch.cat([loss.to(device) for loss in losses], self.dim)
        total = float(sum(sizes))
        weights = [size / total if self.reduction == MEAN else 1.0 for size in sizes]
        return sum(loss.to(device) * weight for loss, weight in zip(losses, weights))


def gather(outputs, target_device=None, dim=0):
    """Return the outputs of a ``DataParallelModel`` as one, as if computed on one device; differentiable.

    Args:
        outputs: a tuple, one output per device: tensors, or containers of them with the same structure.
        target_device: the device of the result; None means the first output's device.
        dim: the dimension in which the batch was divided.
    """
    if not isinstance(outputs, (tuple, list)) or not outputs:
        raise AmpTypeError("gather expected the tuple of a DataParallelModel, one output per device.")
    target = next(tensors_in(outputs)).device if target_device is None else _device(target_device)
    if target.type == "cpu":
        return _concatenated(list(outputs), target, dim)
    return scatter_gather.gather(list(outputs), target.index, dim)


# -- devices -----------------------------------------------------------------------------------------------------------


def _devices(device_ids):
    if device_ids is None:
        device_ids = range(torch.cuda.device_count())
    devices = [_device(each) for each in device_ids]
    if not devices:
        raise AmpValueError("There is no GPU. To try it on a CPU, pass device_ids=['cpu', 'cpu'].")
    if len({device.type for device in devices}) > 1:
        raise AmpValueError(f"device_ids must be all GPUs or all CPU devices, not {list(device_ids)}.")
    return devices


def _device(named):
    device = torch.device("cuda", named) if isinstance(named, int) else torch.device(named)
    if device.type != "cpu" and device.index is None:
        device = torch.device(device.type, 0)
    return device


def _on_cpu(devices):
    return devices[0].type == "cpu"


# -- scatter, replicate, apply, gather ---------------------------------------------------------------------------------


def _scatter(args, kwargs, devices, dim):
    """Return [(args, kwargs)] for as many devices as get a part of the batch."""
    if not _on_cpu(devices):
        indices = [device.index for device in devices]
        split, named = scatter_gather.scatter_kwargs(args, kwargs, indices, dim)
        return list(zip(split, named))
    split, named = _chunks(tuple(args), len(devices), dim), _chunks(dict(kwargs), len(devices), dim)
    count = min(len(split), len(named))
    return list(zip(split[:count], named[:count]))


def _chunks(value, count, dim):
    """Return up to ``count`` parts of a nested value, as torch's scatter does: tensors in chunks, others whole."""
    if isinstance(value, torch.Tensor):
        return list(value.chunk(count, dim))
    if isinstance(value, (tuple, list)) and value:
        rows = list(zip(*(_chunks(each, count, dim) for each in value)))
        if hasattr(value, "_fields"):
            return [type(value)(*row) for row in rows]
        return [type(value)(row) for row in rows]
    if isinstance(value, dict) and value:
        names = list(value)
        return [dict(zip(names, row)) for row in _chunks(tuple(value.values()), count, dim)]
    return [value] * count


def _replicas(module, devices):
    if len(devices) == 1:
        return [module]
    if not _on_cpu(devices):
        return replicate(module, [device.index for device in devices], not torch.is_grad_enabled())
    return [module] + [_cpu_replica(module, {}) for _ in devices[1:]]


def _cpu_replica(module, replicas):
    """Return a copy that shares params and has its own buffers, which are discarded, as on all but the first GPU."""
    if id(module) not in replicas:
        replica = replicas[id(module)] = type(module).__new__(type(module))
        vars(replica).update(vars(module))
        replica._parameters = module._parameters.copy()
        replica._buffers = {name: None if each is None else each.clone() for name, each in module._buffers.items()}
        replica._modules = {
            name: None if child is None else _cpu_replica(child, replicas) for name, child in module._modules.items()
        }
    return replicas[id(module)]


def _apply(modules, calls):
    if len(modules) == 1 or next(tensors_in(calls)).device.type == "cpu":
        return [module(*args, **kwargs) for module, (args, kwargs) in zip(modules, calls)]
    args, kwargs = zip(*calls)
    return parallel_apply(modules, args, kwargs)


def _concatenated(parts, device, dim):
    """Join nested values of the same structure by concatenating their tensors."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        if first.dim() == 0:
            return torch.stack([part.to(device) for part in parts])
        return torch.cat([part.to(device) for part in parts], dim)
    if isinstance(first, dict):
        return type(first)((name, _concatenated([part[name] for part in parts], device, dim)) for name in first)
    if isinstance(first, (tuple, list)):
        columns = [_concatenated(list(column), device, dim) for column in zip(*parts)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if first is None:
        return None
    raise AmpTypeError(f"gather can join tensors and containers of them, not {type(first).__name__}.")


def _size(call, dim):
    """Return the number of samples in a call of the criterion."""
    tensor = next(tensors_in(call))
    return tensor.shape[dim] if tensor.dim() > dim else 1
