"""Half params and their masters in chunks: values and gradients are copied between them, chunk by chunk."""

import operator

import torch

from ...support import tensor_lists
from ...support.tensor_lists import add_gradients, set_stored_gradient, stored_gradient
from ...support.torch_compat import fake_tensors, features
from . import gradient_pool
from .take_written_values import take_values

_VERSION = operator.attrgetter("_version")


class MasterChunk:
    """Half params of a model, their masters (pairwise), and optionally a pool for the masters' gradients.

    Where params are many and small, a pass that reads one attribute of each takes 1 to 2 % of a step.
    """

    __slots__ = ("models", "masters", "is_new", "_pool", "_versions", "_version_sum", "_roundings", "_of_masters")

    def __init__(self, pairs, pool=None):
        self.models, self.masters = map(list, zip(*pairs))
        self.is_new = True  # no step yet
        self._pool = pool
        self.note_versions()

    def note_versions(self):
        """Consider neither the half params nor the masters written until their version counters move."""
        self._set_versions(_versions(self.models))
        self._of_masters = _versions(self.masters)

    def _set_versions(self, versions):
        self._versions, self._version_sum = versions, sum(versions)
        self._roundings = 0  # each increments every version

    def continue_from(self, original):
        """Keep what ``original`` has noted of these pairs, which were among its own: steps, and versions."""
        places = {id(master): index for index, master in enumerate(original.masters)}
        indices = [places[id(master)] for master in self.masters]
        self.is_new = original.is_new
        self._set_versions([original._versions[index] + original._roundings for index in indices])
        self._of_masters = [original._of_masters[index] for index in indices]

    def refresh(self, writes, wholly=False):
        """Copy to the masters what was written to their half params since the last ``round_into_models``.

        A param counts as written if its version counter has changed, or if ``writes`` has noted it and its master has
        not been written by itself: scripts read ``param.data`` more often than they write it. Before the first step
        every value is compared, since numpy and collectives change no version counter.

        Args:
            writes: the session's ``WrittenMemory``.
            wholly: before the first step, masters that no script has written take the whole value of their half param,
                not only the elements that differ. So ranks have equal masters, as with Apex, after one of them
                broadcast its half params.
        """
        # Version counters never decrease, so that equal sums mean equal versions. ``torch.utils.swap_tensors`` refuses
        # params that are referenced weakly, as those that ``WrittenMemory`` watches are.
        expected_sum = self._version_sum + self._roundings * len(self.models)
        if not (self.is_new or writes) and sum(map(_VERSION, self.models)) == expected_sum:
            return
        versions = _versions(self.models)
        compares_all = self.is_new and not fake_tensors.is_fake_type(type(self.masters[0]))
        written = {False: [], True: []}  # whether wholly -> indices
        for index, model in enumerate(self.models):
            is_changed = versions[index] != self._versions[index] + self._roundings
            is_noted = model in writes
            is_followed = (compares_all or is_noted) and not self._is_written_itself(index, writes)
            if is_changed or is_followed or (self.is_new and is_noted):
                written[wholly and is_followed].append(index)
        for whole, indices in written.items():
            self._take(indices, writes, whole)
        self._set_versions(versions)

    def _is_written_itself(self, index, writes):
        master = self.masters[index]
        return master._version != self._of_masters[index] or master in writes

    def _take(self, indices, writes, wholly):
        if indices:
            models, masters = [[each[index] for index in indices] for each in (self.models, self.masters)]
            before = _versions(masters)
            take_values(models, masters, wholly)
            for index, master, version in zip(indices, masters, before):
                self._of_masters[index] += master._version - version
            writes.clear(models)

    def round_into_models(self, writes):
        """Copy the masters to the half params, rounded; clear what ``writes`` has noted of both."""
        tensor_lists.copy_(self.models, self.masters)
        self._roundings += 1
        if not self.is_new:
            self._of_masters = _versions(self.masters)
            writes.clear(self.models)
            writes.clear(self.masters)

    def move_gradients(self, unscale_, may_stay=False):
        """Add the half params' gradients to those of their masters, in the masters' dtype, and set them to None.

        Args:
            unscale_: called with the wide gradients, in lists as ``tensor_lists.grouped`` returns them, before they
                are added.
            may_stay: nobody needs the float32 gradients before the step; see ``RemainderChunk``.
        """
        models, masters, pool = self.models, self.masters, self._pool
        grads = list(map(stored_gradient, models))
        if any([grad is None for grad in grads]):
            kept = [index for index, grad in enumerate(grads) if grad is not None]
            models, masters, grads = ([each[index] for index in kept] for each in (models, masters, grads))
            pool = None
        if not grads:
            return
        is_added = tensor_lists.have_gradients(masters)
        copies = None if pool is None or is_added else pool.filled(grads)
        if copies is None:
            copies, groups = tensor_lists.widened(grads, masters)
        else:
            groups = [[pool.flat]]
        del grads
        for model in models:
            set_stored_gradient(model, None)
        unscale_(groups)
        if is_added:
            add_gradients(masters, copies)
        else:
            for master, copied in zip(masters, copies):
                master.grad = copied

    def clear_half_gradients(self, set_to_none):
        """Set the gradients of the half params to None, or to 0 where their masters have none."""
        for model, master in zip(self.models, self.masters):
            grad = None if set_to_none or stored_gradient(master) is not None else stored_gradient(model)
            if grad is not None:
                grad.detach_().zero_()
            else:
                set_stored_gradient(model, None)

    def gradient_memory(self):
        """Return the pool's tensor, which stays allocated between steps, or None. Memory measurement uses it."""
        return None if self._pool is None else self._pool.flat

    def stored_memory(self):
        """Return the tensors that masters without values are stored in: none. Memory measurement uses it."""
        return []


def _versions(params):
    return list(map(_VERSION, params))


def chunks_of(pairs):
    """Return the ``MasterChunk`` lists of (model, master) pairs, those with a pool first.

    A pool's memory is allocated already, so moving its gradients first only frees half gradients. Moved last, they
    would still be allocated beside all float32 gradients, and the peak would be higher.
    """
    small, rest = _set_apart(pairs)
    pooled = [MasterChunk(each, gradient_pool.GradientPool([master for _, master in each])) for each in small]
    return pooled + [MasterChunk(each) for each in tensor_lists.chunked(rest)]


def _set_apart(pairs):
    """Split (model, master) pairs into lists of small ones that can share a pool, and all others."""
    small, rest, elements_left = {}, [], {}
    for pair in sorted(pairs, key=lambda pair: pair[1].numel()):
        master = pair[1]
        key = (master.device, master.dtype)
        left = elements_left.get(key, gradient_pool.LARGEST_POOL) - gradient_pool.padded(master)
        if left < 0 or not _is_plain(master):
            rest.append(pair)
        else:
            elements_left[key] = left
            small.setdefault(key, []).append(pair)
    return list(small.values()), rest


def _is_plain(master):
    kind = type(master)
    is_plain = kind in (torch.Tensor, torch.nn.Parameter) or fake_tensors.is_fake_type(kind)
    is_plain = is_plain and master.layout is torch.strided
    return is_plain and features.counts_storage_uses() and master.is_contiguous()
