"""Additional statistics of norms and softmaxes: how close to one another their inputs are."""

import torch


def variance_share(name, tensor, args, kwargs):
    """Return variance over mean square of a norm's input, per channel or position; 0 if all values are equal."""
    with torch.no_grad():
        values = tensor.detach()
        if name == "layer_norm":
            shape = kwargs.get("normalized_shape") or args[1]
            dims = list(range(values.dim() - len(tuple(shape)), values.dim()))
        elif name == "batch_norm":
            dims = [dim for dim in range(values.dim()) if dim != 1]
        else:
            groups = kwargs.get("num_groups") or args[1] if name == "group_norm" else values.shape[1]
            values, dims = values.reshape(values.shape[0], groups, -1), [2]
        square = values.pow(2).mean(dims)
        return (square - values.mean(dims).pow(2)).clamp_min(0) / square.clamp_min(1e-30)


def gaps(name, tensor, args, kwargs):
    """Return the differences between the largest and the second largest inputs of a softmax."""
    with torch.no_grad():
        values = tensor.detach()
        dim = 1 if name == "cross_entropy" else kwargs.get("dim", args[1] if len(args) > 1 else -1)
        dim = -1 if dim is None or values.dim() == 1 else dim
        if values.shape[dim] < 2:
            return torch.zeros_like(values)
        largest, second = values.topk(2, dim)[0].unbind(dim)
        return largest - second
