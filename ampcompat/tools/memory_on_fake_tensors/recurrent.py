"""The workspaces of oneDNN's recurrent kernels, which torch's fake tensors do not have.

A layer in training keeps a workspace for the backward pass, on this CPU up to 15 times as large as its output. oneDNN
does not document its size, so the kernel is run with real tensors of the layer's shapes and at most ``LONGEST`` steps.
Beyond that, the size grows linearly with the steps.
"""

import functools

import torch

from ...support.torch_compat import thread_context

#: The number of time steps of a trial.
LONGEST = 32

#: The positions of arguments of ``aten::mkldnn_rnn_layer``, and of the workspace among its results.
_TENSORS, _TRAIN, _WORKSPACE = slice(0, 7), 15, 3


def is_layer(function):
    """Return whether an operation is one of oneDNN's recurrent layers."""
    return function is _layer()


@functools.lru_cache(maxsize=None)
def _layer():
    return torch.ops.aten.mkldnn_rnn_layer.default


def with_workspace(result, args):
    """Return the results of a fake layer, with a workspace of the size that the real kernel allocates."""
    if not args[_TRAIN] or result[_WORKSPACE] is None or result[_WORKSPACE].numel():
        return result
    tensors = args[_TENSORS]
    steps, shapes = tensors[0].shape[0], tuple(tuple(each.shape) for each in tensors)
    batch_sizes = tuple(args[8])
    rest = (args[7],) + tuple(args[9:])
    size = _size(min(steps, LONGEST), shapes, tensors[0].dtype, rest, bool(batch_sizes))
    if steps > LONGEST:
        half = _size(LONGEST // 2, shapes, tensors[0].dtype, rest, bool(batch_sizes))
        size += (size - half) * (steps - LONGEST) // (LONGEST - LONGEST // 2)
    workspace = result[_WORKSPACE].new_empty(size)
    return tuple(result[:_WORKSPACE]) + (workspace,)


@functools.lru_cache(maxsize=None)
def _size(steps, shapes, dtype, rest, is_packed):
    """Return the bytes of the workspace of a real layer.

    Args:
        steps: time steps.
        shapes: of the input, four weights and two states.
        dtype: their dtype.
        rest: the arguments after them, except for the sizes of packed batches.
        is_packed: whether there are such sizes; then all time steps get the whole batch.
    """
    reverse, rest = rest[0], rest[1:]
    with thread_context.without_dispatch_modes(), thread_context.recording_gradients():
        tensors = [torch.zeros((steps,) + shapes[0][1:], dtype=dtype)]
        tensors += [torch.zeros(shape, dtype=dtype) for shape in shapes[1:]]
        batch_sizes = [shapes[0][1]] * steps if is_packed else []
        result = torch.ops.aten.mkldnn_rnn_layer.default(*tensors, reverse, batch_sizes, *rest)
        return result[_WORKSPACE].nbytes
