"""Optimizers that amp did not get: what a scaled pass leaves in their params becomes true gradients, too."""

import functools
from itertools import chain

import torch

from ...support.live_objects import WeakList, all_objects
from ..optimizers.optimizer_record import record_of
from .untrained_params import trained_ids


class OtherOptimizers:
    """The optimizers of the process that have no record.

    A script may train some of them without amp, perhaps in another thread, so a pass touches the gradients of an
    optimizer only if its params are in the graph of that loss, or were in that of an earlier one.
    """

    def __init__(self):
        self._unknown, self._reached = WeakList(), WeakList()
        self._are_reached = False  # any, so far
        self._is_open = False

    def _open(self, patches):
        """Look for optimizers, and note those that are made later; undone by ``patches``."""
        patches.defer(setattr, self, "_is_open", False)
        self._is_open = True
        make = torch.optim.Optimizer.__init__

        @functools.wraps(make)
        def noted(optimizer, *args, **kwargs):
            make(optimizer, *args, **kwargs)
            self._unknown.add(optimizer)

        patches.set(torch.optim.Optimizer, "__init__", noted)
        for each in all_objects(torch.optim.Optimizer):
            self._unknown.add(each)

    def params_reached_by(self, loss, session):
        """Return the params of optimizers that scaled passes reach, that of this loss or an earlier one.

        Without those that are in optimizers with a record, too, as those of an optimizer around another.
        """
        if not self._is_open:
            self._open(session.patches)
        unknown = []
        for each in self._unknown:
            if record_of(each) is None:
                unknown.append(each)
            else:
                self._unknown.discard(each)
        if not (unknown or self._are_reached):
            return ()
        trained = trained_ids(session)
        own = [(each, {id(param) for param in _params_of(each)} - trained) for each in unknown]
        leaves = leaves_of(loss) if any([ids for _, ids in own]) else set()
        for each, ids in own:
            if ids & leaves or not ids:
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
