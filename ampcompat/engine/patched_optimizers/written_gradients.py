"""Whether a gradient is the same tensor as before, and unwritten."""

import weakref

from ...support.torch_compat import features


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
