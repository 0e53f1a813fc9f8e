"""Optimizers that amp did not get: what a scaled pass leaves in their params becomes true gradients, too."""

import functools
import operator
from itertools import chain

import torch

from ...support import tensor_lists
from ...support.live_objects import WeakList, all_objects
from ...support.tensor_lists import stored_gradient
from ...support.torch_compat.thread_blocks import grad_enabled
from ..optimizers.optimizer_record import record_of

_VERSION = operator.attrgetter("_version")


class OtherOptimizers:
    """The optimizers of the process that have no record.

    A script may train some of them without amp, perhaps in another thread, so a pass touches the gradients of an
    optimizer only when a scaled pass is known to reach it; from then on ``UntrainedParams`` has its params.
    """

    def __init__(self):
        self._unknown, self._reached = WeakList(), WeakList()
        self.are_reached = False  # any, so far
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

    def reached_params(self):
        """Return the params of the optimizers that scaled passes reach, a list for each of their groups."""
        return [params for each in self._reached if record_of(each) is None for params in _params_of(each)]

    def before_pass(self, patches):
        """Return what ``end_pass`` compares with: the gradients of optimizers that no pass has reached so far, or None.

        Args:
            patches: the ``PatchStack`` that ends the look-out for optimizers.
        """
        if not self._is_open:
            self._open(patches)
        owners = []
        for each in self._unknown:
            if record_of(each) is None:
                owners.append(each)
            else:
                self._unknown.discard(each)
        if not owners:
            return None
        params = list(chain.from_iterable([params for each in owners for params in _params_of(each)]))
        return (owners, params) + _state_of(params)

    def end_pass(self, before, loss, scale, trained):
        """Unscale gradients of params that a pass has reached for the first time.

        Args:
            trained: called without arguments; returns the ids of the params that optimizers with a record have.
        """
        owners, params, earlier, versions = before
        now, versions_now = _state_of(params)
        if all(map(operator.is_, now, earlier)) and versions_now == versions:
            return
        leaves, trained = leaves_of(loss), trained()
        for owner in owners:
            ids = set(map(id, chain.from_iterable(_params_of(owner))))
            if ids <= trained or ids & leaves - trained:
                self.are_reached = True
                self._unknown.discard(owner)
                self._reached.add(owner)
        reached = {id(param) for param in chain.from_iterable(self.reached_params())} & leaves - trained
        gradients = [each for param, each in zip(params, now) if id(param) in reached and each is not None]
        if gradients:
            with grad_enabled(False):
                tensor_lists.multiply_(tensor_lists.grouped(gradients), 1.0 / scale)


def _params_of(optimizer):
    # Any optimizer of the process: one may be half made, or emptied by what was made of it.
    return [group["params"] for group in vars(optimizer).get("param_groups", ()) if "params" in group]


def _state_of(params):
    gradients = list(map(stored_gradient, params))
    return gradients, list(map(_VERSION, [gradient for gradient in gradients if gradient is not None]))


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
