"""Which tensors a backward pass reaches, and the scale by which its losses are already multiplied."""

from typing import Any, NamedTuple

import torch

#: Keys in ``metadata`` of the graph's node: the scale by which the script's own ``GradScaler`` multiplied a loss, and
#: the loss before that.
SCALE, LOSS = "ampcompat_scale", "ampcompat_loss"

#: The node of ``torch.utils.checkpoint`` with reentrant autograd, whose recomputation is not in the graph.
_REENTRANT = "CheckpointFunctionBackward"


class Reached(NamedTuple):
    """What a backward pass from given tensors reaches.

    ``leaves`` are the tensors that get a gradient, by id. ``scale`` is that of the script's own ``GradScaler`` if it
    has multiplied one of the losses, otherwise None. ``has_hidden``: whether other leaves may be reached too.
    """

    leaves: dict
    scale: Any
    has_hidden: bool


def reached(tensors):
    """Return the ``Reached`` of the backward pass from a list of tensors."""
    leaves = {id(each): each for each in tensors if each.grad_fn is None and each.requires_grad}
    waiting = [each.grad_fn for each in tensors if each.grad_fn is not None]
    seen, scale, has_hidden = set(waiting), None, False
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            leaves[id(leaf)] = leaf
        if scale is None:
            scale = node.metadata.get(SCALE)
        has_hidden = has_hidden or type(node).__name__ == _REENTRANT
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return Reached(leaves, scale, has_hidden)


def mark_scaled(scaled, loss, scale):
    """Note that ``scaled`` is ``loss`` multiplied by ``scale``: a float, or a tensor of shape ()."""
    if scaled.grad_fn is not None:
        scaled.grad_fn.metadata.update({SCALE: scale, LOSS: loss})


def unscaled(tensor, scale):
    """Return the loss that the script computed, before its ``GradScaler`` multiplied it by ``scale``."""
    loss = None if tensor.grad_fn is None else tensor.grad_fn.metadata.get(LOSS)
    return tensor.detach() / scale if loss is None else loss
