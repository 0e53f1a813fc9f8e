"""How models are split over ranks by ``fully_shard``, or optimizer state, and the bytes that a rank sends per step.

A param is split along its first dimension into parts of ``ceil(size / ranks)`` rows; torch pads the last ones to that.
Each group of params (a block, or the params of the model outside of blocks) is all-gathered in the forward pass, and
again in the backward pass, except for that of the model itself, which torch keeps. Gradients are reduce-scattered. In
each of these, a rank sends its part of ``1 / ranks`` to all the others.

``ZeroRedundancyOptimizer`` gives each param, the largest first, to the rank that has the fewest elements so far. That
rank holds its state, and sends it to the others after a step.
"""

import torch


class Sharding:
    """A model sharded by ``fully_shard``.

    Args:
        model: the module.
        world_size: the number of ranks.
        blocks: modules that ``fully_shard`` is called with before it is called with the model; "full": the items of the
            model's outermost ``ModuleList`` and ``Sequential`` containers.
        regathers: False keeps gathered weights from the forward pass to the backward pass (ZeRO stage 2).
    """

    splits_params = True

    def __init__(self, model, world_size, blocks="full", regathers=True):
        self.world_size = world_size
        self._regathers = regathers
        blocks = items_of(model) if isinstance(blocks, str) else blocks
        self._in_blocks = {id(param) for block in blocks for param in block.parameters()}

    def local_shape(self, shape):
        """Return the shape of a rank's part of a param, which padding makes the same on every rank."""
        return (-(-shape[0] // self.world_size),) + tuple(shape[1:]) if len(shape) else ()

    def has_state(self, param):
        """Return True: each rank has the state of its part of every param."""
        return True

    def bytes_sent(self, param, gathered_size, reduced_size):
        """Return the bytes that a rank sends per step for a param, given the bytes per element gathered and reduced."""
        part = torch.Size(self.local_shape(param.shape)).numel()
        gathers = 2 if self._regathers and id(param) in self._in_blocks else 1
        per_element = gathers * gathered_size + (reduced_size if param.requires_grad else 0)
        return (self.world_size - 1) * part * per_element


class StateSharding:
    """Optimizer state divided as by ``ZeroRedundancyOptimizer`` (ZeRO stage 1).

    Args:
        model: the module.
        world_size: the number of ranks.

    Attributes:
        fullest: the rank with the most state, to which the queries refer.
    """

    splits_params = False

    def __init__(self, model, world_size):
        self.world_size = world_size
        counts, rank_of = [0] * world_size, {}
        for param in sorted(model.parameters(), key=torch.Tensor.numel, reverse=True):
            rank = counts.index(min(counts))
            counts[rank] += param.numel() if param.requires_grad else 0
            rank_of[id(param)] = rank
        self.fullest = counts.index(max(counts))
        self._held = {key for key, rank in rank_of.items() if rank == self.fullest}

    def has_state(self, param):
        """Return whether the rank has the state of a param."""
        return id(param) in self._held

    def bytes_sent(self, param, size):
        """Return the bytes that the rank sends after a step for a param, given the bytes per element."""
        return (self.world_size - 1) * param.numel() * size if self.has_state(param) else 0


def items_of(module):
    """Return the items of the outermost containers in a module."""
    found = []
    for child in module.children():
        is_list = isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential))
        found += list(child) if is_list else items_of(child)
    return found
