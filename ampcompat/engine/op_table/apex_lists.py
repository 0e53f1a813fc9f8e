"""``OverrideLists``: the op table as the three modules of lists that Apex has, for users to edit.

The table itself does not change. A session compares the lists with it to find the edits.
"""

from types import SimpleNamespace

import torch

from . import expansion

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
        """Undo the user's edits. The three module objects stay the same."""
        for name, lists in expansion.default_lists().items():
            module = vars(vars(self)[name])
            module.clear()
            module.update(lists, MODULE=_OWNERS[name])

    def as_data(self):
        """Return the lists as they are now, in the shape of ``expansion.default_lists()``."""
        return {name: vars(lists) for name, lists in vars(self).items()}
