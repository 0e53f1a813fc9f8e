"""Optimizers that amp did not get: what a scaled pass leaves in their params becomes true gradients, too."""

from itertools import chain

import torch

from ...support import tensor_lists
from ...support.live_objects import WeakList, all_objects
from ..optimizers.optimizer_record import record_of
from .untrained_params import trained_ids


class OptimizersWithoutAmp:
    """The optimizers of the process that have no record.

    A script may train some of them without amp, perhaps in another thread, so a pass touches the gradients of an
    optimizer only if its params are in the graph of that loss, or were in that of an earlier one.
    """

    def __init__(self):
        self._unknown, self._reached = WeakList(), WeakList()
        self._are_reached = False  # any, so far
        self.passes = WeakList()  # ``UntrainedPass`` objects
        self._is_open = False

    def _open(self, patches):
        """Look for optimizers, and note those that are made later; undone by ``patches``."""
        patches.defer(setattr, self, "_is_open", False)
        self._is_open = True
        patches.wrap(torch.optim.Optimizer, "__init__", self._made)
        for each in all_objects(torch.optim.Optimizer):
            if record_of(each) is None:
                self._unknown.add(each)

    def _made(self, init, optimizer, *args, **kwargs):
        init(optimizer, *args, **kwargs)
        self._unknown.add(optimizer)

    def exist(self, patches):
        """Return whether there may be any; the search for them is undone by ``patches``."""
        if not self._is_open:
            self._open(patches)
        return self._are_reached or bool(self._unknown)

    def params_reached_by(self, leaves, session):
        """Return the params of optimizers that scaled passes reach, that of one loss or an earlier one.

        Without those that are in optimizers with a record, too, as those of an optimizer around another.

        Args:
            leaves: returns ``leaves_of`` the loss. It is called if an optimizer that no pass has reached has gradients:
                only these are multiplied, as a block begins, or divided, as it ends.
        """
        unknown = []
        for each in self._unknown:
            if record_of(each) is not None:
                self._unknown.discard(each)
            elif tensor_lists.have_stored_gradients(_params_of(each)):
                unknown.append(each)
        if not (unknown or self._are_reached):
            return []
        trained = trained_ids(session)
        for each in unknown:
            ids = {id(param) for param in _params_of(each)} - trained
            if not ids or ids & leaves():
                self._are_reached = True
                self._unknown.discard(each)
                self._reached.add(each)
        params = [param for each in self._reached if record_of(each) is None for param in _params_of(each)]
        return [param for param in params if id(param) not in trained]


def _params_of(optimizer):
    # Any optimizer of the process: one may be half made, or emptied by what was made of it.
    groups = vars(optimizer).get("param_groups", ())
    return list(chain.from_iterable([group["params"] for group in groups if "params" in group]))


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
