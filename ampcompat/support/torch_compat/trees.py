"""``torch.utils._pytree``, whose ``tree_map`` looks into containers of known classes, not of their subclasses."""

import torch

try:
    import torch.utils._pytree
except ImportError:  # torch before 1.7
    pass


def register(kind, flatten, unflatten):
    """Let trees contain objects of a class (torch 2.2).

    Args:
        flatten: called with an object; returns a list of what is in it, and a context for ``unflatten``.
        unflatten: called with such a list and the context; returns an object.
    """
    register_node = getattr(getattr(torch.utils, "_pytree", None), "register_pytree_node", None)
    if register_node is not None:
        register_node(kind, flatten, unflatten)
