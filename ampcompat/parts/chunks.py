"""Half params and their masters in lists whose gradients move together, with memory for the small ones.

Owns: ``Chunk``, ``GradientPool``, and which pairs share a chunk.
Must not touch: scales; the optimizer.
The surprise: making room for a small gradient costs more than filling it, so the small ones of a model share one tensor
that lives from step to step. It never hands out memory that somebody still sees: who kept a gradient, a view of it or
an alias of it beyond the step keeps it unchanged, and the pool moves to new memory.
"""

import copy
import sys

import torch

from ..tables import torch_facts
from . import tensors

#: Elements that the masters of one pool have, at most: 4 MiB of float32 that live on between steps.
LARGEST_POOL = 1 << 20

#: Gradients begin at multiples of so many elements, as the kernels for lists of tensors like it.
ALIGNMENT = 16


class Chunk:
    """Half params of a model, their masters pairwise, and perhaps a pool for the masters' gradients."""

    __slots__ = ("models", "masters", "_pool")

    def __init__(self, pairs, pool=None):
        self.models, self.masters = map(list, zip(*pairs))
        self._pool = pool

    def take_gradients(self):
        """Take the models' gradients away; return (masters, copies, groups), or None where there is no gradient.

        ``copies`` are in the masters' dtype, pairwise; ``groups`` are the same values as ``LossScaler.unscale_`` wants
        them.
        """
        models, masters, pool = self.models, self.masters, self._pool
        grads = [model.grad for model in models]
        if any(grad is None for grad in grads):
            kept = [index for index, grad in enumerate(grads) if grad is not None]
            models, masters, grads = ([each[index] for index in kept] for each in (models, masters, grads))
            pool = None
        if not grads:
            return None
        if pool is None or any(grad.is_sparse for grad in grads) or any(master.grad is not None for master in masters):
            copies, groups = tensors.widened(grads, masters)
        else:
            copies, flat = pool.filled(grads)
            groups = [[flat]]
        for model in models:
            model.grad = None
        return masters, copies, groups

    def memory(self):
        """Return the tensor that lives on for the gradients, or None: whoever counts memory asks."""
        return None if self._pool is None else self._pool.flat

    def __deepcopy__(self, memo):
        pairs = copy.deepcopy(list(zip(self.models, self.masters)), memo)
        return Chunk(pairs, self._pool and GradientPool([master for _, master in pairs]))


def chunks_of(pairs):
    """Return the ``Chunk`` lists of (model, master) pairs, those with a pool first.

    A pool's memory is there already when its gradients move, so that moving frees half ones and takes nothing; moved
    last, they would lie beside all the wide ones.
    """
    small, rest = _set_apart(pairs)
    pooled = [Chunk(each, GradientPool([master for _, master in each])) for each in small]
    return pooled + [Chunk(each) for each in tensors.chunked(rest)]


class GradientPool:
    """One tensor, ``flat``, with room for the gradients of some masters, alike in device and dtype."""

    def __init__(self, masters):
        self._masters = masters
        self.flat = None
        self._gradients = []
        self._references = []
        self._uses = 0

    def filled(self, grads):
        """Return copies of gradients, one per master and in its dtype, and the one tensor that holds them all."""
        if self.flat is None or not self._is_ours_alone():
            self._make()
        torch._foreach_copy_(self._gradients, grads)
        return self._gradients, self.flat

    def _is_ours_alone(self):
        # References from Python count at each gradient; aliases, views and what C++ holds count at their common memory.
        return (
            torch_facts.storage_uses(self.flat) == self._uses
            and list(map(sys.getrefcount, self._gradients)) == self._references
        )

    def _make(self):
        sizes = [_padded(master) for master in self._masters]
        # Zeros, since what lies between the gradients is checked for inf and nan along with them.
        self.flat = torch.zeros(sum(sizes), dtype=self._masters[0].dtype, device=self._masters[0].device)
        storage, self._gradients, offset = self.flat.untyped_storage(), [], 0
        for master, size in zip(self._masters, sizes):
            # No views: a view would share its version with all the others.
            gradient = self.flat.new_empty(0).set_(storage, offset, master.shape, master.stride())
            self._gradients.append(gradient)
            offset += size
        del storage, gradient
        self._references = list(map(sys.getrefcount, self._gradients))
        self._uses = torch_facts.storage_uses(self.flat)


def _set_apart(pairs):
    """Return (lists, rest) of (model, master) pairs: lists of small ones alike that can share a pool; all others."""
    small, rest, room = {}, [], {}
    for pair in sorted(pairs, key=lambda pair: pair[1].numel()):
        master = pair[1]
        key = (master.device, master.dtype)
        left = room.get(key, LARGEST_POOL) - _padded(master)
        if left < 0 or not _is_plain(master):
            rest.append(pair)
        else:
            room[key] = left
            small.setdefault(key, []).append(pair)
    return list(small.values()), rest


def _is_plain(master):
    is_parameter = type(master) is torch.nn.Parameter and master.layout is torch.strided
    return is_parameter and torch_facts.counts_storage_uses() and master.is_contiguous()


def _padded(master):
    return -(-master.numel() // ALIGNMENT) * ALIGNMENT
