"""How ``fully_shard`` splits a model over ranks, and the bytes that a rank sends per step.

A param is split along its first dimension into parts of ``ceil(size / ranks)`` rows; torch pads the last ones to that.
Each group of params (a block, or what the blocks leave to the model) is all-gathered in the forward pass, and again in
the backward pass, except that of the model itself, which torch keeps. Gradients are reduce-scattered. In each of these
a rank sends its part of ``1 / ranks`` to all the others.
"""

import torch


class Sharding:
    """A model spread by ``fully_shard``.

    Args:
        model: the module.
        world_size: the number of ranks.
        blocks: modules that ``fully_shard`` is called with before it is called with the model; "full": the items of the
            model's outermost ``ModuleList`` and ``Sequential`` containers.
    """

    def __init__(self, model, world_size, blocks="full"):
        self.world_size = world_size
        blocks = _items(model) if isinstance(blocks, str) else blocks
        self._in_blocks = {id(param) for block in blocks for param in block.parameters()}

    def local_shape(self, shape):
        """Return the shape of a rank's part of a param; every rank holds the same, by padding."""
        return (-(-shape[0] // self.world_size),) + tuple(shape[1:]) if len(shape) else ()

    def bytes_sent(self, param, gathered_size, reduced_size):
        """Return the bytes that a rank sends per step for a param, at bytes per element gathered and reduced."""
        part = torch.Size(self.local_shape(param.shape)).numel()
        gathers = 2 if id(param) in self._in_blocks else 1
        per_element = gathers * gathered_size + (reduced_size if param.requires_grad else 0)
        return (self.world_size - 1) * part * per_element


def _items(module):
    """Return the items of the outermost containers in a module."""
    found = []
    for child in module.children():
        is_list = isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential))
        found += list(child) if is_list else _items(child)
    return found
