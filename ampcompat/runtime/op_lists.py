"""The op table as Apex's three modules of lists.

Owns: ``OverrideLists``.
Must not touch: the table itself, which stays as it is written.
The surprise: these lists are edited by users; a session compares them with the table to learn what was changed.
"""

from types import SimpleNamespace

import torch

from ..tables import op_rules

_OWNERS = {
    "functional_overrides": torch.nn.functional,
    "torch_overrides": torch,
    "tensor_overrides": torch.Tensor,
}


class OverrideLists:
    """``functional_overrides``, ``torch_overrides`` and ``tensor_overrides``, each with ``MODULE`` and its lists."""

    def __init__(self):
        for name in _OWNERS:
            vars(self)[name] = SimpleNamespace()
        self.restore()

    def restore(self):
        """Undo what users did to the lists; who holds one of the three modules sees it."""
        for name, lists in op_rules.default_lists().items():
            module = vars(vars(self)[name])
            module.clear()
            module.update(lists, MODULE=_OWNERS[name])

    def as_data(self):
        """Return the lists as they are now, in the shape of ``op_rules.default_lists()``."""
        return {name: vars(lists) for name, lists in vars(self).items()}
