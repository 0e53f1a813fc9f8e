"""Scaled gradients in params of an optimizer that was not passed to the ``scale_loss`` of the backward pass.

A step on such gradients warns. Most scripts never make one: a GAN's generator pass leaves gradients in the
discriminator, whose own ``zero_grad`` clears them. Which params a pass reaches is found from the autograd graph of the
loss, not from ``.grad``, which another thread's backward may be writing. Segments of a reentrant checkpoint are not in
the graph, so params used only there are not found.
"""

import threading
import weakref

from ..torch_compat import features

#: For so many passes without it an optimizer is watched. A wrong training loop is wrong from its first iteration.
WATCHED_PASSES = 10


class Passes(threading.local):
    """The number of scaled backward passes (scale not 1) that have ended in this thread, and the last one's scale."""

    ended = 0
    scale = 1.0

    def add(self, scale):
        """Count one."""
        self.ended, self.scale = self.ended + 1, scale


def is_watched(adapter):
    """Return whether the next pass without this adapter should be checked."""
    return adapter.watched_passes < WATCHED_PASSES


def record_pass(loss, scale, adapters):
    """Tell the adapters whose params a loss depends on that the pass left scaled gradients there.

    Args:
        loss: the tensor whose backward pass it was.
        scale: its scale: a float, or a tensor of shape ().
        adapters: of the optimizers that were not passed to ``scale_loss``.
    """
    leaves = leaves_of(loss)
    for adapter in adapters:
        adapter.watched_passes += 1
        if any(id(param) in leaves and param.grad is not None for param in adapter.leaf_params()):
            adapter.leave_untracked(scale)


def marks_of(grads):
    """Return what tells gradients from later ones: (weak reference, version) of each, or None."""
    return [None if grad is None else (weakref.ref(grad), grad._version) for grad in grads]


def are_cleared(marks, grads):
    """Return whether each gradient of now is None or was written to since, as ``zero_grad`` does in place."""
    return all(grad is None or mark is None or grad._version != mark[1] for mark, grad in zip(marks, grads))


def are_replaced(marks, grads):
    """Return whether each gradient of now is another tensor, as after ``model.zero_grad()``.

    False where torch makes a new object of a gradient at every read.
    """
    if not features.keeps_gradient_objects():
        return False
    return all(mark is None or mark[0]() is not grad for mark, grad in zip(marks, grads))


def leaves_of(tensor):
    """Return the ids of the tensors that ``tensor.backward()`` accumulates gradients in."""
    leaves, nodes, waiting = set(), set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        waiting += [parent for parent, _ in node.next_functions]
        if not node.next_functions:
            leaves.add(id(getattr(node, "variable", None)))
    return leaves
