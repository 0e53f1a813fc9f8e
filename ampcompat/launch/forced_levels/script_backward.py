"""Backward passes of the script, treated as within ``amp.scale_loss`` for the optimizers that they reach."""

import functools
from typing import Any, NamedTuple

import torch

from ...engine.loss_scaling.loss_scaler import is_one, is_same
from ...support import tensor_lists
from ...support.torch_compat import thread_context
from . import refusals
from .trained_modules import params_of

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


def reached_from(tensors):
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


class BackwardPasses:
    """Replaces ``torch.autograd.backward`` under a forced level.

    Args:
        forced: the ``ForcedLevel``.
    """

    def __init__(self, forced):
        self._forced = forced

    def called(self, backward, tensors, *args, **kwargs):
        """Do a backward pass of the script; ``backward`` is the original, and the rest are its arguments."""
        self._forced.has_passes = True
        if thread_context.is_in_backward() or not self._forced.rules():
            return backward(tensors, *args, **kwargs)
        listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if not all(isinstance(each, torch.Tensor) for each in listed):  # edges of a graph
            return backward(tensors, *args, **kwargs)
        inputs = kwargs.get("inputs", args[4] if len(args) > 4 else None)
        self._run(functools.partial(backward, **kwargs), listed, args, inputs)

    def _run(self, backward, tensors, args, inputs):
        reached = reached_from(tensors)
        leaves = reached.leaves if inputs is None else _by_id(inputs)
        waiting = self._forced.owner_that_waits(leaves)
        while waiting is not None:
            if not self._forced.prepare_tensors(waiting):
                raise self._forced.refused(waiting, refusals.NO_MODULE)
            waiting = self._forced.owner_that_waits(leaves)
        records = self._records(leaves, reached.has_hidden and inputs is None)
        if not records:
            backward(tensors, *args)
            return
        optimizers = [record.optimizer for record in _with_usable_gradients(records)]
        # Observers of the pass get the loss that the script computed.
        loss = tensors[0] if reached.scale is None else unscaled(tensors[0], reached.scale)
        block = self._forced.session.scale_loss(loss, optimizers, untrained_leaves=self._untrained(leaves))
        with block as scaled:
            scale = getattr(block, "scale", 1.0)
            if reached.scale is None:
                tensors = [scaled] + [times(each, scale) for each in tensors[1:]]
            elif not is_same(reached.scale, scale):  # an overflow of another loss has changed the scale meanwhile
                tensors = [times(each, scale / reached.scale) for each in tensors]
            backward(tensors, *args)

    def _untrained(self, leaves):
        trained = {id(param) for record in self._forced.prepared() for param in record.leaf_params()}
        return [leaf for key, leaf in leaves.items() if key not in trained]

    def _records(self, leaves, has_hidden):
        known = self._forced.prepared()
        if has_hidden:
            return known
        return [record for record in known if any(id(param) in leaves for param in record.leaf_params())]


def _with_usable_gradients(records):
    """Return the records whose gradients a pass may be added to; all of them if none may.

    In adversarial training, the generator's pass also reaches the discriminator, whose gradients may have overflowed
    earlier. They are not part of the overflow check of this pass. The script clears them before that optimizer's next
    pass.
    """
    usable = []
    for record in records:
        if not _has_gradients(record):
            record.skips.gradients_cleared()
            usable.append(record)
        elif not record.skips.are_stale():
            usable.append(record)
    for record in records if usable else ():
        if record not in usable:
            record.skips.skip_until_cleared()
    return usable or records


def _has_gradients(record):
    return record.masters.have_half_gradients() or tensor_lists.have_gradients(params_of(record.optimizer))


def times(tensor, scale):
    """Return a loss multiplied by a scale (a float, or a tensor of shape ()), in float32; unchanged if that is 1."""
    if is_one(scale):
        return tensor
    wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    return wide * (scale.to(tensor.device) if isinstance(scale, torch.Tensor) else scale)


def _by_id(inputs):
    listed = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    return {id(each): each for each in listed if isinstance(each, torch.Tensor)}
