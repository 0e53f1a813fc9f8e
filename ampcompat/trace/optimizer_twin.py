"""``OptimizerTwin``: an optimizer of the same class, options and state, with copies of the params in another dtype."""

import collections
import copy

import torch

from ..engine.optimizers.half_and_master_chunks import recast
from ..support import random_state
from ..support.torch_compat import step_hooks

_INSTANCE_STATE = ("param_groups", "state", "_amp_stash")


class OptimizerTwin:
    """Steps with the gradients that the original gets, rounded or widened to its dtype.

    Args:
        optimizer: the original, before its step.
        dtype: of the copies.

    Attributes:
        pairs: the (original param, copy) pairs.
    """

    def __init__(self, optimizer, dtype):
        self._original, self._dtype = optimizer, dtype
        twin = object.__new__(type(optimizer))
        replaced = [name for name, value in vars(optimizer).items() if callable(value) and hasattr(twin, name)]
        own = {name: value for name, value in vars(optimizer).items() if name not in replaced}
        vars(twin).update({name: value for name, value in own.items() if name not in _INSTANCE_STATE})
        with torch.no_grad():
            twin.param_groups = [
                dict(group, params=[self._copy(param) for param in group["params"]]) for group in optimizer.param_groups
            ]
        copies = [param for group in twin.param_groups for param in group["params"]]
        self.pairs = list(zip([param for group in optimizer.param_groups for param in group["params"]], copies))
        twin.state = collections.defaultdict(dict)
        for param, copied in self.pairs:
            if param in optimizer.state:
                twin.state[copied] = copy.deepcopy(optimizer.state[param])
                recast(twin.state[copied], copied.shape, dtype)
        self._twin = twin

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
        with torch.no_grad(), random_state.restored():
            for param, copied in self.pairs:
                copied.grad = None if param.grad is None else param.grad.to(self._dtype)
            step_hooks.plain_step(type(self._original))(self._twin)  # hooks would count it as a step of the script
