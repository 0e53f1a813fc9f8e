"""What a script has written to half weights, taken over by their float32 masters."""

import torch

from ...support import tensor_lists
from ...support.torch_compat import features


def kept_where_equal(master, value):
    """Return, elementwise, the master where it rounds to ``value``, elsewhere ``value`` in the master's dtype."""
    value_dtype, value = value.dtype, value.to(master.dtype)  # exact, and old torch compares no halves on a CPU
    return torch.where(master.to(value_dtype).to(master.dtype) == value, master, value)


def take_values(models, masters, wholly=False):
    """Copy the values of half params to their masters (pairwise).

    Elements that round to the half param's value are kept, except if ``wholly``. Does not synchronize with a device.
    """
    with torch.no_grad():
        if wholly:
            tensor_lists.copy_([master.detach() for master in masters], [model.detach() for model in models])
            return
        for halves, wides in _batches(models, masters):
            if len(halves) == 1:
                wides[0].copy_(kept_where_equal(wides[0], halves[0]))
                continue
            tensor_lists.copy_(wides, _pieces_of(kept_where_equal(_flat(wides), _flat(halves)), wides))


def _flat(tensors):
    """Return the elements of tensors of one device and dtype in one vector. ``torch.cat`` could be cast by autocast."""
    vector = tensors[0].new_empty(sum([tensor.numel() for tensor in tensors]))
    tensor_lists.copy_(_pieces_of(vector, tensors), tensors)
    return vector


def _pieces_of(vector, tensors):
    """Return views of parts of a vector, one after another, in the shapes of ``tensors``."""
    pieces = vector.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors)]


def _batches(models, masters):
    """Yield lists of half and of wide tensors, pairwise, that share a device and a dtype, of a bounded size."""
    elements_left, key = 0, None
    halves, wides = [], []
    for model, master in zip(models, masters):
        moved = model.detach().to(master.device)  # a model may have been moved, masters are not
        for half, wide in zip(_pieces(moved), _pieces(master.detach())):
            is_alike = (half.dtype, wide.dtype, wide.device) == key and wide.numel() <= elements_left
            if not (is_alike and features.has_foreach_copy()):
                if halves:
                    yield halves, wides
                halves, wides, elements_left = [], [], tensor_lists.CHUNK
                key = (half.dtype, wide.dtype, wide.device)
            halves.append(half)
            wides.append(wide)
            elements_left -= wide.numel()
    if halves:
        yield halves, wides


def _pieces(tensor):
    """Split a tensor along its first dimension into pieces of a bounded size."""
    if tensor.numel() <= tensor_lists.CHUNK:
        return [tensor]
    return tensor.split(max(tensor_lists.CHUNK * tensor.shape[0] // tensor.numel(), 1))
