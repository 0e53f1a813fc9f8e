"""Walk over nested containers: tensors are cast or collected; everything else is kept, including container types.

``cast_floating`` walks the arguments and outputs of modules, of any depth and type. ``map_items``, ``map_arguments``
and ``floating_tensors`` walk the arguments of functions, which are tuples, lists and dicts. If nothing has to be cast,
the same object is returned. Integer, bool and complex tensors are never cast.
"""

import copy
from collections import deque
from collections.abc import Mapping, MutableMapping

import torch

#: Methods that do the same as ``to(dtype)`` without parsing its arguments, which takes 0.5 us.
METHODS = {
    torch.float16: torch.Tensor.half,
    torch.bfloat16: torch.Tensor.bfloat16,
    torch.float32: torch.Tensor.float,
    torch.float64: torch.Tensor.double,
}

#: The floating dtypes and the bytes of an element.
BYTES = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}
CONTAINERS = (tuple, list, dict)

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)


def cast_floating(value, dtype, sources=None):
    """Return ``value`` with every floating-point tensor in it cast to ``dtype``.

    Args:
        value: a tensor, or nested tuples, lists, deques, sets, frozensets, dicts, namedtuples, dataclasses, mappings,
            packed sequences and objects with a ``.to`` method, of any depth. Everything else is returned as it is.
        dtype: the floating ``torch.dtype`` wanted.
        sources: a collection of dtypes; tensors of other dtypes are not cast. None means all floating ones.

    Returns:
        The same object if nothing had to be cast, otherwise one of the same type.
    """
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if _is_meant(value, sources) and value.dtype is not dtype else value
    return _Walk(dtype, sources).visit(value)


def _is_meant(tensor, sources):
    return tensor.is_floating_point() if sources is None else tensor.dtype in sources


class _Walk:
    """One conversion of one value. It records the objects it visits, to handle cycles and keep shared parts shared."""

    def __init__(self, dtype, sources):
        self.dtype = dtype
        self.sources = sources
        self.seen = {}

    def visit(self, value):
        if isinstance(value, torch.Tensor):
            return cast_floating(value, self.dtype, self.sources)
        if isinstance(value, _PLAIN) or isinstance(value, (type, torch.nn.Module)):
            return value
        key = id(value)  # once: torch.compile of 2.4 fails where its graph ends with a dict on the stack
        if key not in self.seen:
            self.seen[key] = (value, value)  # the first keeps the id valid; the second is for cycles
            self.seen[key] = (value, self._rebuild(value))
        return self.seen[key][1]

    def _rebuild(self, value):
        if isinstance(value, (tuple, list, deque, set, frozenset)):
            items = [self.visit(item) for item in value]
            return value if all(new is old for new, old in zip(items, value)) else _with_items(value, items)
        if isinstance(value, Mapping):
            changed = self._changed(value.items())
            return _updated(value, changed) if changed else value
        if hasattr(type(value), "__dataclass_fields__"):
            return self._attributes(value, value.__dataclass_fields__)
        if callable(getattr(value, "to", None)):
            return self._movable(value)
        return value

    def _changed(self, pairs):
        """Return ``{name: new value}`` of those of the (name, value) pairs that were cast."""
        changed = {}
        for name, old in pairs:
            new = self.visit(old)
            if new is not old:
                changed[name] = new
        return changed

    def _attributes(self, value, names):
        changed = self._changed([(name, getattr(value, name, None)) for name in names])
        if not changed:
            return value
        copied = copy.copy(value)
        for name, new in changed.items():
            object.__setattr__(copied, name, new)
        return copied

    def _movable(self, value):
        attributes = getattr(value, "__dict__", None)
        if attributes:  # attribute by attribute: its own ``to(dtype)`` might convert integer tensors too
            return self._attributes(value, list(attributes))
        return value.to(self.dtype) if self.sources is None or _dtype_of(value) in self.sources else value


def _with_items(value, items):
    """Return a collection of the type of ``value``, which is no mapping, with the same number of other items."""
    if type(value) in (tuple, list):
        return type(value)(items)
    if isinstance(value, (list, deque, set)):
        new = copy.copy(value)  # of the same type, and a deque of the same ``maxlen``
        new.clear()
        (new.update if isinstance(value, set) else new.extend)(items)
        return new
    if hasattr(value, "_make"):
        return value._make(items)
    if hasattr(value, "n_sequence_fields"):  # torch.return_types.*: built from one sequence
        return type(value)(items)
    kind = frozenset if isinstance(value, frozenset) else tuple
    new = kind.__new__(type(value), items)
    getattr(new, "__dict__", {}).update(getattr(value, "__dict__", {}))
    return new


def _updated(value, changed):
    """Return a mapping of the type of ``value`` with some items changed."""
    if not isinstance(value, MutableMapping):
        items = dict(value)
        items.update(changed)
        return type(value)(items)
    if type(value) is dict:  # torch.compile traces neither a shallow copy nor, before torch 2.6, ``dict(value)``
        return {key: changed.get(key, item) for key, item in value.items()}
    new = copy.copy(value)
    for key, item in changed.items():
        new[key] = item
    return new


def _dtype_of(value):
    return getattr(value, "dtype", None)


def tensors_in(value):
    """Yield every tensor in nested lists, tuples, sets and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from tensors_in(item)


def map_items(cast, value):
    """Return a tuple, list or dict with its items cast; the same object if none changed, otherwise one of its type."""
    # Runs at every call of a function that casts, also for lists of numbers. As in Apex, other containers are not
    # walked.
    if isinstance(value, dict):
        items = {key: cast(item) for key, item in value.items()}
        if all(items[key] is value[key] for key in items):
            return value
        return items if type(value) is dict else _updated(value, items)
    items = [cast(item) for item in value]
    if all(new is old for new, old in zip(items, value)):
        return value
    return items if type(value) is list else _with_items(value, items)


def map_arguments(cast, args, kwargs):
    """Return the arguments and keywords of a call, cast; ``out`` is not changed."""
    args = [cast(arg) for arg in args]
    if not kwargs:
        return args, kwargs
    return args, {name: value if name == "out" else cast(value) for name, value in kwargs.items()}


def floating_tensors(value, found):
    """Append the floating tensors within a value to a list."""
    if isinstance(value, torch.Tensor):
        if value.dtype in BYTES:
            found.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            floating_tensors(item, found)
    elif isinstance(value, (tuple, list)):
        for item in value:
            floating_tensors(item, found)
    return found


try:
    import torch.utils._pytree
except ImportError:  # torch before 1.7
    pass


def let_trees_contain(kind, flatten, unflatten):
    """Let ``tree_map`` of ``torch.utils._pytree`` look into objects of a class, too (torch 2.2).

    Args:
        flatten: called with an object; returns a list of what is in it, and a context for ``unflatten``.
        unflatten: called with such a list and the context; returns an object.
    """
    register_node = getattr(getattr(torch.utils, "_pytree", None), "register_pytree_node", None)
    if register_node is not None:
        register_node(kind, flatten, unflatten)
