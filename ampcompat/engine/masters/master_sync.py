"""Half params and their masters in chunks: made, and values and gradients copied between them, chunk by chunk.

After a step, and after any other method of the optimizer, a half param is its master, rounded. In between a script may
write to either. A version counter that has moved, or an alias that the script has got from ``.data`` or ``.numpy()``
(``unversioned_writes``), says that a tensor may have been written; then the values are compared:

    half param          master              what follows where half is not the master, rounded
    not written         not written         nothing is compared
    may be written      not written         before a step the master takes the half param's elements
    not written         may be written      before a forward pass, a step and a checkpoint the half param is rounded
                                            again, without a move of its version counter: the graph of an earlier
                                            forward pass may need it
    may be written      may be written      the half param counts if its version counter has moved

Before a script gets ``.data`` of one of them, it takes what was written to the other, if it was not written itself.

Before the first step all half params may have been written, since numpy and collectives move no version counter.
Comparing all of them before every step would read each weight and its master once more.
Writes through DLPack, a storage, or a kernel that gets an address are not seen after the first step.

Before a forward pass ``requires_grad`` of both is compared with what it was: what a script has frozen or unfrozen,
through the model or through ``param_groups``, is so in both.
"""

import functools
import operator

import torch

from ...support import tensor_lists
from ...support.tensor_lists import add_gradients, set_stored_gradient, stored_gradient
from ...support.torch_compat import fake_tensors, features
from ...support.torch_compat.thread_blocks import grad_enabled

_VERSION = operator.attrgetter("_version")
_IS_TRAINED = operator.attrgetter("requires_grad")
_IS_NONE = functools.partial(operator.is_, None)


class MasterChunk:
    """Half params of a model and their masters, pairwise.

    Args:
        pairs: (model, master) pairs.
        writes: the session's ``WrittenMemory``.

    Where params are many and small, a pass that reads one attribute of each takes 1 to 2 % of a step.
    """

    __slots__ = ("models", "masters", "is_new", "_places", "_writes")
    __slots__ += ("_half_versions", "_master_versions", "_are_trained")

    is_stored = False  # the masters have no values: see ``RemainderChunk``

    def __init__(self, pairs, writes):
        self._writes = writes
        self.models, self.masters = map(list, zip(*pairs))
        self._places = {id(master): index for index, master in enumerate(self.masters)}
        self.is_new = True  # no step yet
        self._are_trained = list(map(_IS_TRAINED, self.masters))  # and the half params, when they agreed last
        self.note_versions()

    def note_versions(self):
        """Consider neither the half params nor the masters written until their version counters move."""
        self._half_versions = list(map(_VERSION, self.models))
        self._master_versions = list(map(_VERSION, self.masters))

    def continue_from(self, original):
        """Keep what ``original`` has noted of these pairs, which were among its own: steps, and versions."""
        indices = [original._places[id(master)] for master in self.masters]
        self.is_new = original.is_new
        self._half_versions = [original._half_versions[index] for index in indices]
        self._master_versions = [original._master_versions[index] for index in indices]
        self._are_trained = [original._are_trained[index] for index in indices]

    def refresh(self, wholly=False):
        """Make half params and masters agree before a step: see the table of this module.

        Args:
            wholly: before the first step, masters that no script has written take the whole value of their half param,
                not only the elements that differ. So ranks have equal masters, as with Apex, after one of them
                broadcast its half params.
        """
        of_halves, of_masters = self._written()
        if wholly:
            moved = [index for index in of_halves if self.models[index]._version != self._half_versions[index]]
            self._take([index for index in of_halves if index not in moved], wholly)
            of_halves = moved
        if of_halves or of_masters:
            self._take(of_halves)
            self._show(of_masters)

    def show_written(self):
        """Round the masters that the script has written into their half params, unless it has written these too."""
        self._show(self._written()[1])

    def follow_writes(self, master, is_master_next):
        """Let a master take what the script has written to its half param only, or the other way round.

        Args:
            master: the master; it may be one of another chunk.
            is_master_next: it is the master that the script may write next.
        """
        index = self._places.get(id(master))
        if index is None or self.is_stored:
            return
        model, master = self.models[index], self.masters[index]
        may_half_be = model._version != self._half_versions[index] or model in self._writes
        may_master_be = master._version != self._master_versions[index] or master in self._writes
        if is_master_next and not may_master_be and (may_half_be or self._compares_all()):
            self._take([index])
        elif may_master_be and not (may_half_be or is_master_next):
            self._show([index])

    def follow_requires_grad(self):
        """Freeze and unfreeze masters as their half params, and half params as masters that a script has."""
        of_halves, of_masters = list(map(_IS_TRAINED, self.models)), list(map(_IS_TRAINED, self.masters))
        if of_halves == self._are_trained == of_masters:
            return
        for index, before in enumerate(self._are_trained):
            is_trained = of_masters[index] if of_halves[index] is before else of_halves[index]
            self.models[index].requires_grad_(is_trained)
            self.masters[index].requires_grad_(is_trained)
            self._are_trained[index] = is_trained

    def show_all(self):
        """Round all masters into their half params, without a move of their version counters."""
        self._show(range(len(self.models)))

    def _written(self):
        """Return the indices of the half params that may have been written, and those of the masters."""
        half_versions, master_versions = list(map(_VERSION, self.models)), list(map(_VERSION, self.masters))
        writes = self._writes
        is_unmoved = half_versions == self._half_versions and master_versions == self._master_versions
        if is_unmoved and not (self.is_new or writes.noted):
            return (), ()
        compares_all = self._compares_all()
        of_halves, of_masters = [], []
        for index, (model, master) in enumerate(zip(self.models, self.masters)):
            may_master_be = master_versions[index] != self._master_versions[index] or master in writes
            if half_versions[index] != self._half_versions[index]:
                of_halves.append(index)
            elif may_master_be:
                of_masters.append(index)
            elif compares_all or model in writes:
                of_halves.append(index)
        return of_halves, of_masters

    def _compares_all(self):
        return self.is_new and not fake_tensors.is_fake_type(type(self.masters[0]))

    def _take(self, indices, wholly=False):
        if indices:
            models, masters = self._at(indices)
            take_values(models, masters, wholly)
            self._note_agreement(indices)

    def _show(self, indices):
        if indices:
            models, masters = self._at(indices)
            with grad_enabled(False):
                tensor_lists.copy_(list(map(tensor_lists.data_of, models)), masters)
            self._note_agreement(indices)

    def _at(self, indices):
        return [[each[index] for index in indices] for each in (self.models, self.masters)]

    def _note_agreement(self, indices):
        for index in indices:
            self._half_versions[index] = self.models[index]._version
            self._master_versions[index] = self.masters[index]._version
        for tensors in self._at(indices) if self._writes.noted else ():
            self._writes.clear(tensors)

    def round_into_models(self):
        """Copy the masters to the half params, rounded: neither counts as written."""
        tensor_lists.copy_(self.models, self.masters)
        self.note_versions()
        if self._writes.noted:
            self._writes.clear(self.models + self.masters)

    def move_gradients(self, unscale_, may_stay=False):
        """Add the half params' gradients to those of their masters, in the masters' dtype, and set them to None.

        Args:
            unscale_: called with the wide gradients, in lists as ``tensor_lists.grouped`` returns them, before they
                are added; or None.
            may_stay: nobody needs the float32 gradients before the step; see ``RemainderChunk``.
        """
        models, masters = self.models, self.masters
        grads = list(map(stored_gradient, models))
        if any(map(_IS_NONE, grads)):
            kept = [index for index, grad in enumerate(grads) if grad is not None]
            models, masters, grads = ([each[index] for index in kept] for each in (models, masters, grads))
        if not grads:
            return
        copies, groups = self._widened(grads, masters)
        del grads
        for model in models:
            set_stored_gradient(model, None)
        if unscale_ is not None:
            unscale_(groups)
        add_gradients(masters, copies)

    def _widened(self, grads, masters):
        """Return gradients in the dtype of the masters (pairwise), and the same in groups."""
        return tensor_lists.widened(grads, masters)

    def clear_half_gradients(self, set_to_none):
        """Set the gradients of the half params to None, or to 0 where their masters have none."""
        for model, master in zip(self.models, self.masters):
            grad = None if set_to_none or stored_gradient(master) is not None else stored_gradient(model)
            if grad is not None:
                grad.detach_().zero_()
            else:
                set_stored_gradient(model, None)

    def stored_memory(self):
        """Return the tensors that masters without values are stored in: none. Memory measurement uses it."""
        return []


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


def make_master(param, originals, dtype):
    """Return a master of a half param, with its gradient and Python attributes, and its original values if known."""
    value, grad = originals[id(param)] if id(param) in originals else (param.detach(), param.grad)
    # No ``Parameter``, whose ``.grad`` may be replaced by a slower property (``session_masters``).
    master = value.to(dtype).detach().requires_grad_(param.requires_grad)
    vars(master).update(vars(param))  # attributes that optimizers read, such as "no weight decay"
    if grad is not None:
        master.grad = grad.to(dtype)
        set_stored_gradient(param, None)
    return master


def move_master(master, device):
    """Move a master, the same object, and its gradient to the device of its half param."""
    if master.device != device:
        grad, master.grad = master.grad, None
        master.data = master.data.to(device)
        master.grad = None if grad is None else grad.to(device)


def recast(state, shape, dtype):
    """Cast the floating tensors of a param's state that have the param's shape, but not its count of steps."""
    for name, value in (state or {}).items():
        if name == "step" or not isinstance(value, torch.Tensor):
            continue
        if value.is_floating_point() and value.shape == shape:
            state[name] = value.to(dtype)


def kept_where_equal(master, value):
    """Return, elementwise, the master where it rounds to ``value``, elsewhere ``value`` in the master's dtype."""
    value_dtype, value = value.dtype, value.to(master.dtype)  # exact, and old torch compares no halves on a CPU
    return torch.where(master.to(value_dtype).to(master.dtype) == value, master, value)


def take_values(models, masters, wholly=False):
    """Copy the values of half params to their masters (pairwise).

    Elements that round to the half param's value are kept, except if ``wholly``. Does not synchronize with a device.
    Version counters stay: for chunks of other optimizers, a master that has moved was written by the script.
    """
    with grad_enabled(False):
        if wholly:
            tensor_lists.copy_(list(map(tensor_lists.data_of, masters)), [model.detach() for model in models])
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
        for half, wide in zip(_pieces(moved), _pieces(tensor_lists.data_of(master))):
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
