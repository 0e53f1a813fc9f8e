"""``GradientPool``: one tensor for the gradients of small masters, which is reused in every step.

Allocating a small gradient takes longer than filling it: without pools the step of ``benchmarks/step_overhead.py`` at
O2 takes 3 to 19 % longer (``benchmarks/RESULTS.md``). If a script has kept a gradient, or a view or an alias of one,
beyond the step, the pool allocates a new tensor and what was kept stays unchanged.
"""

import sys

import torch

from ...support.torch_compat import features

#: The largest number of elements in one pool: 4 MiB of float32 that stay allocated between steps.
LARGEST_POOL = 1 << 20

#: Gradients begin at multiples of so many elements: aligned tensors are faster in foreach kernels.
ALIGNMENT = 16


class GradientPool:
    """One tensor, ``flat``, that holds the gradients of several masters of one device and dtype."""

    def __init__(self, masters):
        self._masters = masters
        self.flat = None
        self._gradients = []
        self._references = []
        self._storage = self._uses = 0  # the address of the storage of ``flat``, and how many tensors share it

    def filled(self, grads):
        """Return copies of gradients in ``flat``, one per master and in its dtype; None if a gradient is sparse."""
        if self.flat is None or not self._is_ours_alone():
            self._make()
        try:
            torch._foreach_copy_(self._gradients, grads)
        except RuntimeError:  # asking each gradient whether it is sparse takes longer
            if any(grad.is_sparse for grad in grads):
                return None
            raise
        return self._gradients

    def _is_ours_alone(self):
        # References from Python are counted per gradient; aliases, views and references from C++ per storage.
        return (
            features.storage_uses(self._storage) == self._uses
            and list(map(sys.getrefcount, self._gradients)) == self._references
        )

    def _make(self):
        sizes = [padded(master) for master in self._masters]
        # Zeros: the padding between the gradients is checked for inf and nan along with them.
        self.flat = torch.zeros(sum(sizes), dtype=self._masters[0].dtype, device=self._masters[0].device)
        storage, self._gradients, offset = self.flat.untyped_storage(), [], 0
        for master, size in zip(self._masters, sizes):
            # No views: views of one tensor share a version counter.
            gradient = self.flat.new_empty(0).set_(storage, offset, master.shape, master.stride())
            self._gradients.append(gradient)
            offset += size
        self._storage = storage._cdata
        del storage, gradient
        self._references = list(map(sys.getrefcount, self._gradients))
        self._uses = features.storage_uses(self._storage)


def padded(master):
    """Return how many elements of a pool the gradient of a master takes."""
    return -(-master.numel() // ALIGNMENT) * ALIGNMENT
