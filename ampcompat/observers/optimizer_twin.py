"""``OptimizerTwin``: an optimizer of the same class, options and state, with copies of the params in another dtype."""

import collections
import copy

import torch

from ..engine.masters.master_sync import recast
from ..support import random_state
from ..support.patching import PatchStack
from ..support.torch_compat import step_hooks
from ..support.torch_compat.thread_blocks import grad_enabled

#: Attributes that the twin does without, or has in its own way.
_NOT_COPIED = ("param_groups", "state", "_amp_stash", step_hooks.PRE_HOOKS, step_hooks.POST_HOOKS)


class OptimizerTwin:
    """Steps with the gradients that the original gets, rounded or widened to its dtype.

    It has copies of all that the original has (masters, an optimizer inside): its steps change nothing of these.

    Args:
        optimizer: the original, before its step.
        dtype: of the copies.

    Attributes:
        pairs: the (original param, copy) pairs.

    Raises:
        Exception: whatever a copy of one of the original's attributes raises.
    """

    def __init__(self, optimizer, dtype):
        self._original, self._dtype = optimizer, dtype
        params = [param for group in optimizer.param_groups for param in group["params"]]
        with grad_enabled(False):
            self.pairs = [(param, self._copy(param)) for param in params]
        copies = {id(param): copied for param, copied in self.pairs}
        groups = [
            dict(group, params=[copies[id(each)] for each in group["params"]]) for group in optimizer.param_groups
        ]
        state = collections.defaultdict(dict)
        for param, copied in self.pairs:
            if param in optimizer.state:
                state[copied] = _copied(optimizer.state[param])
        known = {id(each): own for each, own in zip(optimizer.param_groups, groups)}
        known.update(copies)
        known.update({id(optimizer.param_groups): groups, id(optimizer.state): state})
        self._twin = object.__new__(type(optimizer))
        vars(self._twin).update(copy.deepcopy(self._own_attributes(), known))
        hooks = {name: collections.OrderedDict() for name in (step_hooks.PRE_HOOKS, step_hooks.POST_HOOKS)}
        vars(self._twin).update(hooks, param_groups=groups, state=state)
        for each in [self._twin] + [
            each for each in vars(self._twin).values() if isinstance(each, torch.optim.Optimizer)
        ]:
            for param, values in each.state.items():
                recast(values, param.shape, dtype)

    def _own_attributes(self):
        """Return the original's attributes without those of ``_NOT_COPIED``, and methods that the instance replaces."""
        kind = type(self._original)
        return {
            name: value
            for name, value in vars(self._original).items()
            if name not in _NOT_COPIED and not (callable(value) and hasattr(kind, name))
        }

    @property
    def state(self):
        """The state of the twin: ``{copy: its state}``."""
        return self._twin.state

    def _copy(self, param):
        return param.detach().to(self._dtype, copy=True).requires_grad_(param.requires_grad)

    def step(self):
        """Step with the original's options and gradients of now; raises whatever its class raises in this dtype."""
        for group, own in zip(self._original.param_groups, self._twin.param_groups):
            own.update((name, value) for name, value in group.items() if name != "params")
        with grad_enabled(False), random_state.restored(), PatchStack() as patches:
            step_hooks.hide(self._twin, patches)  # this is no step of the script
            for param, copied in self.pairs:
                copied.grad = None if param.grad is None else param.grad.to(self._dtype)
            try:
                type(self._original).step(self._twin)
            finally:
                for _, copied in self.pairs:
                    copied.grad = None


def _copied(state):
    """Return a deep copy of a param's state, in which plain tensors are clones: ``deepcopy`` takes 8 times as long."""
    values = state.values() if isinstance(state, dict) else ()
    return copy.deepcopy(state, {id(each): each.detach().clone() for each in values if type(each) is torch.Tensor})
