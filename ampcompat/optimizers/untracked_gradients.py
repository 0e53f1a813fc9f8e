"""Scaled gradients in params of an optimizer that was not passed to the ``scale_loss`` of the backward pass.

A step on such gradients warns. Most scripts never make one: a GAN's generator pass leaves gradients in the
discriminator, whose own ``zero_grad`` clears them. Which params a pass reaches is found from the autograd graph of the
loss, not from ``.grad``, which another thread's backward may be writing. Segments of a reentrant checkpoint are not in
the graph, so params used only there are not found.
"""

import threading

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
