"""What a script has changed in ``.grad``: whether a gradient is the same tensor as before, and unwritten."""

import weakref

import torch

from ...support import tensor_lists
from ...support.tensor_lists import set_stored_gradient, stored_gradient
from ...support.torch_compat import features


class ReadGradient:
    """The gradient of a half param that the script has read or assigned.

    Args:
        model, master: the half param and its master.
        writes: a ``WrittenMemory``; None if the script has assigned the gradient. Otherwise ``.grad`` of the half param
            was made of the master's.
    """

    __slots__ = ("model", "_master", "_writes", "_shown", "_mark")

    def __init__(self, model, master, writes=None):
        self.model, self._master, self._writes = model, master, writes
        if writes is not None:
            self._shown = stored_gradient(model)  # old torch makes a new object of ``.grad`` when nobody holds one
            self._mark = mark_of(self._shown)
            writes.watch([self._shown])

    def take(self):
        """Give the master the elements that the script has changed; empty ``.grad`` of the half param."""
        master, now = self._master, stored_gradient(self.model)
        exact = stored_gradient(master)
        set_stored_gradient(self.model, None)
        if now is None or exact is None or self._writes is None:
            set_stored_gradient(master, None if now is None else widened(now, master))
        elif not is_unchanged(self._mark, mark_of(now)) or self._shown in self._writes:
            self._take_changed(now, rounded(exact, now))

    def _take_changed(self, now, shown):
        master = self._master
        if now.is_sparse or shown.is_sparse:
            if not torch.equal(now.to_dense(), shown.to_dense()):
                set_stored_gradient(master, widened(now, master))
        else:
            wide = widened(now, master)
            is_changed = wide != shown.to(master.dtype)  # old torch compares no halves on a CPU
            exact = stored_gradient(master)
            exact.copy_(torch.where(is_changed, wide, exact))


def widened(gradient, master):
    """Return a gradient in its master's dtype, on the master's device, coalesced."""
    return tensor_lists.coalesced(gradient).to(device=master.device, dtype=master.dtype)


def rounded(gradient, model):
    """Return a gradient in its half param's dtype, on the param's device; None for none."""
    return None if gradient is None else gradient.detach().to(device=model.device, dtype=model.dtype)


def mark_of(grad):
    """Return what distinguishes a gradient from a later one; None if there is none.

    Where torch makes a new object of a gradient at every read it is told by its address.
    """
    if grad is None:
        return None
    kept = weakref.ref(grad) if features.keeps_gradient_objects() or grad.is_sparse else grad.data_ptr()
    return kept, grad._version


def is_unchanged(mark, other):
    """Return whether two marks are of one gradient that was not written to between them."""
    if mark is None or other is None:
        return mark is other
    return not _is_other_tensor(mark, other) and mark[1] == other[1]


def _is_other_tensor(mark, other):
    # Weak references to one object are one object; ``==`` would compare the tensors.
    return mark[0] is not other[0] and not (isinstance(mark[0], int) and mark[0] == other[0])


def are_cleared(marks, now):
    """Return whether each marked gradient is gone or was written to since, as ``zero_grad`` does in place."""
    return all([mark is None or later is None or mark[1] != later[1] for mark, later in zip(marks, now)])


def are_replaced(marks, now):
    """Return whether each marked gradient is another tensor now, as after ``model.zero_grad()``."""
    return all([mark is None or later is None or _is_other_tensor(mark, later) for mark, later in zip(marks, now)])
