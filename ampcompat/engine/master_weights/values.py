"""Values of masters: making them, keeping their low bits, adding their gradients, casting optimizer state.

``Snapshot`` restores an optimizer, ``recast`` casts its state.
"""

import torch

from ...support import tensor_lists
from ...support.tensor_lists import set_stored_gradient, stored_gradient
from ...support.torch_compat import features


class Snapshot:
    """An optimizer's params, their gradients and their state before its params are replaced by masters."""

    def __init__(self, optimizer):
        self.groups = [list(group["params"]) for group in optimizer.param_groups]
        self.grads = [(param, param.grad) for params in self.groups for param in params]
        # Besides the state of params there may be entries of the whole optimizer, such as a count of its steps.
        entries = optimizer.state.items()
        self.state = [(key, dict(entry) if isinstance(entry, dict) else entry) for key, entry in entries]

    def restore(self, optimizer):
        """Restore the optimizer's params, gradients and state."""
        for group, params in zip(optimizer.param_groups, self.groups):
            group["params"][:] = params
        for param, grad in self.grads:
            param.grad = grad
        optimizer.state.clear()
        for key, entry in self.state:
            optimizer.state[key] = entry


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


def make_master(param, originals, dtype):
    """Return a master of a half param, with its gradient and Python attributes, and its original values if known."""
    value, grad = originals[id(param)] if id(param) in originals else (param.detach(), param.grad)
    # No ``Parameter``, whose ``.grad`` may be replaced by a slower property (``half_gradients``).
    master = value.to(dtype).detach().requires_grad_(True)
    vars(master).update(vars(param))  # attributes that optimizers read, such as "no weight decay"
    if grad is not None:
        master.grad = grad.to(dtype)
        set_stored_gradient(param, None)
    return master


def recast(state, shape, dtype):
    """Cast the floating tensors of a param's state that have the param's shape, but not its count of steps."""
    for name, value in (state or {}).items():
        if name == "step" or not isinstance(value, torch.Tensor):
            continue
        if value.is_floating_point() and value.shape == shape:
            state[name] = value.to(dtype)


def add_gradients(masters, grads):
    """Add gradients to those of the masters; a master without one gets the given tensor itself."""
    sums, terms = [], []
    for master, grad in zip(masters, grads):
        held = stored_gradient(master)
        if held is None:
            set_stored_gradient(master, grad)
        elif held.is_sparse or grad.is_sparse:  # torch wants a dense one first
            set_stored_gradient(master, grad + held if held.is_sparse else held + grad)
        else:
            sums.append(held)
            terms.append(grad)
    if sums:
        tensor_lists.add_(sums, terms)
