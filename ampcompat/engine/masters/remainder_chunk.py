"""Chunks of masters that are stored between steps (``remainder_master``), and have their values at the same time."""

import weakref

import torch

from ...support import tensor_lists
from ...support.tensor_lists import set_stored_gradient, stored_gradient
from ...support.torch_compat import fake_tensors
from ...support.torch_compat.thread_blocks import grad_enabled
from ...support.torch_compat.thread_context import without_gradients
from . import remainder_bits
from .master_sync import MasterChunk
from .remainder_master import StoredMaster, StoredPlace, StoredValues, bits_of, give_value

#: Masters begin at multiples of so many elements in the memory of their chunk: aligned tensors are faster.
ALIGNMENT = 16


class RemainderChunk(MasterChunk):
    """Half params and masters that have their values at the same time.

    Args:
        pairs: (model, master) pairs of one device.
        owner: their ``OptimizerMasters``.
    """

    __slots__ = ("_owner", "_layouts", "_size", "_memory", "_stored", "_were_half", "__weakref__")

    def __init__(self, pairs, owner):
        super().__init__(pairs, owner.writes)
        self._owner = owner
        self._layouts = []  # (offset, shape, stride) of each master in memory
        self._size = 0
        for master in self.masters:
            offset = -(-self._size // ALIGNMENT) * ALIGNMENT
            self._layouts.append((offset, master.shape, master.stride()))
            self._size = offset + master.numel()
        self._memory = None  # float32 of shape (size,): the values; while stored None
        self._stored = None  # ``StoredValues``; None while the masters have their values
        self._were_half = []  # in a step, for each master: whether its gradient, if any, stayed half until then

    @property
    def is_stored(self):
        """Whether the masters are stored now."""
        return self._stored is not None

    def stored_memory(self):
        """Return the tensors that hold what the weights lack."""
        return [self._stored.remainders] + self._stored.ties.memory() if self.is_stored else []

    # -- storing and restoring -----------------------------------------------------------------------------------------

    def are_rounded(self):
        """Return whether the half params are the masters, rounded."""
        with without_gradients():
            return all(map(_is_rounded, self.models, self.masters))

    def store(self):
        """Store the masters, whose values rounded are those of the half params. Their gradients stay."""
        with without_gradients():
            memory = self._memory
            if memory is None or not self._are_in(memory):
                memory = torch.empty(self._size, dtype=torch.float32, device=self.masters[0].device)
                tensor_lists.copy_(self._views(memory), [master.detach() for master in self.masters])
            remainders, ties = remainder_bits.split(memory, self._weights())
            stored = StoredValues(remainders, ties, self._layouts)
            empty = [torch.empty(1, dtype=each.dtype, device=each.device).expand_as(each) for each in self.masters]
            self._stored = stored  # nothing is allocated from here on
            self._memory = memory = None
            self._writes.leave_memory(self.masters)
            for index, master in enumerate(self.masters):
                tensor_lists.set_data(master, empty[index])
                if type(master) in tensor_lists.PLAIN:
                    model = weakref.ref(self.models[index])
                    vars(master)["_amp_place"] = StoredPlace(weakref.ref(self), index, stored, model)
                    master.__class__ = StoredMaster

    def restore(self):
        """Give the masters their values and the gradients of a finished pass, until the next step has ended."""
        if self.is_stored:
            self.show_gradients()
            self._restore_values()
            self._writes.watch(self.masters)
            self._owner.shown.watch(zip(self.models, self.masters))

    def show_gradients(self):
        """Make the gradients of the optimizer that stayed half those of the masters."""
        self._owner.show_gradients()

    def show_gradient_of(self, model):
        """Give the master of a half param the gradient that the half param shows."""
        if stored_gradient(model) is not None:
            self.show_gradients()
        self._owner.shown.take_changes_of(model)

    def _restore_values(self):
        with without_gradients():
            memory = remainder_bits.join(self._weights(), self._stored.remainders, self._stored.ties)
            for master, values in zip(self.masters, self._views(memory)):
                give_value(master, values)
            self._memory, self._stored = memory, None
        self.note_versions()

    def _views(self, memory):
        """Return tensors in the shapes and strides of the masters in 1-D memory of any dtype."""
        first = memory.storage_offset()
        return [memory.as_strided(shape, stride, first + offset) for offset, shape, stride in self._layouts]

    def _are_in(self, memory):
        """Return whether the values of the masters are in this memory: a script may have assigned ``data``."""
        places = [fake_tensors.address(memory) + offset * memory.element_size() for offset, _, _ in self._layouts]
        return all(
            fake_tensors.address(master) == place and master.stride() == stride
            for master, place, (_, _, stride) in zip(self.masters, places, self._layouts)
        )

    def _weights(self):
        """Return the bit patterns of the half params, int16 of shape (size,)."""
        device = self.masters[0].device  # a script may have moved the model
        bits = [bits_of(model).to(device) for model in self.models]
        if len(bits) == 1 and bits[0].stride() == self._layouts[0][2]:
            return bits[0].as_strided((self._size,), (1,), bits[0].storage_offset())
        flat = torch.empty(self._size, dtype=torch.int16, device=device)
        tensor_lists.copy_(self._views(flat), bits)
        return flat

    # -- around the step of this chunk ---------------------------------------------------------------------------------

    def has_gradients(self):
        """Return whether a master has a gradient, or its half param one that was not moved."""
        return tensor_lists.have_stored_gradients(self.masters) or tensor_lists.have_stored_gradients(self.models)

    def begin_step(self, takes_half):
        """Give the masters their values.

        Args:
            takes_half: whether the gradients of the half params move to the masters.
        """
        self._restore_values()
        self._were_half = [stored_gradient(master) is None for master in self.masters]
        if takes_half:
            with without_gradients():
                self.move_gradients(None)

    def end_step(self):
        """Round the masters into the half params and store them. Gradients that were half before are half again."""
        self.is_new = False
        with grad_enabled(False):
            for model, master, was_half in zip(self.models, self.masters, self._were_half):
                gradient = stored_gradient(master) if was_half else None
                if gradient is not None:
                    dtype = getattr(model, "grad_dtype", None) or model.dtype  # newer torch lets a script set it
                    set_stored_gradient(model, gradient.to(dtype))
                    set_stored_gradient(master, None)
            self.round_into_models()
            self.store()

    # -- gradients -----------------------------------------------------------------------------------------------------

    def move_gradients(self, unscale_, may_stay=False):
        """As in ``MasterChunk``.

        Args:
            unscale_: see there.
            may_stay: the gradients are true ones, so that they may stay half until the step.
        """
        if not (self.is_stored and may_stay) or tensor_lists.have_stored_gradients(self.masters):
            super().move_gradients(unscale_)

    def _widened(self, grads, masters):
        if not self.is_stored:
            return super()._widened(grads, masters)
        wide = [tensor_lists.coalesced(grad.to(master.device, torch.float32)) for grad, master in zip(grads, masters)]
        return wide, tensor_lists.grouped(wide)


def _is_rounded(model, master):
    """Return whether a half param is its master rounded, bit for bit; fake tensors have no values that differ."""
    if model.device != master.device or fake_tensors.is_fake_type(type(master)):
        return model.device == master.device
    return torch.equal(bits_of(master.detach().to(model.dtype)), bits_of(model))


def remainder_chunks_of(pairs, owner):
    """Return the chunks of (model, master) pairs that can be stored, and the other pairs.

    Args:
        pairs: (model, master) pairs.
        owner: their ``OptimizerMasters``.

    Returns:
        (``RemainderChunk`` list, (model, master) list).
    """
    by_device, rest = {}, []
    for pair in pairs:
        (by_device.setdefault(pair[1].device, []) if _is_storable(*pair) else rest).append(pair)
    chunks = []
    for alike in by_device.values():
        for indices in chunks_of_sizes([master.numel() for _, master in alike]):
            chunks.append(RemainderChunk([alike[index] for index in indices], owner))
    return chunks, rest


def _is_storable(model, master):
    is_plain = type(master) in tensor_lists.PLAIN or fake_tensors.is_fake_type(type(master))
    is_plain = is_plain and master.layout is torch.strided and master.dtype is torch.float32
    return is_plain and model.dtype is torch.bfloat16 and master.numel() > 0 and _is_dense(master)


def _is_dense(tensor):
    """Return whether a tensor's elements fill their memory without gaps or overlaps."""
    size = 1
    for extent, stride in sorted(zip(tensor.shape, tensor.stride()), key=lambda each: each[1]):
        if extent != 1:
            if stride != size:
                return False
            size *= extent
    return True


#: Masters that have values at the same time: at most this share of the optimizer's, within these numbers of elements.
SHARE = 64


FEWEST, MOST = 1 << 17, 1 << 24


def chunks_of_sizes(sizes):
    """Return which masters have their values at the same time, as lists of indices: small ones first.

    Args:
        sizes: their numbers of elements.
    """
    limit = min(max(sum(sizes) // SHARE, FEWEST), MOST)
    chunks, held = [], 0
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        if not chunks or held + sizes[index] > limit:
            chunks.append([])
            held = 0
        chunks[-1].append(index)
        held += sizes[index]
    return chunks
