"""Casts of weights, made once and never stale.

Owns: ``WeightCache``, and the watch over ``Tensor.data``, the one door through which a weight changes unseen.
Must not touch: which functions cast.
The surprise: ``weight.data.clamp_()`` does not move ``weight._version``, because ``.data`` has a version counter of its
own. So while a cache is open, ``Tensor.data`` is a property that tells it; and as long as somebody holds what ``.data``
returned, that weight is cast anew at each use.
"""

import weakref

import torch

from .compiling import is_compiling

Parameter = torch.nn.Parameter
_Tensor = torch.Tensor


def _never():
    return None


# Each is None, or false, where there is nothing to beware of; what a torch lacks cannot be in force there.
_functorch_level = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", _never)
_tracing_state = getattr(torch._C, "_get_tracing_state", _never)
_in_inference = getattr(torch, "is_inference_mode_enabled", _never)
_grad_is_enabled = torch.is_grad_enabled


def _capturing():
    """Return whether a CUDA graph is being captured: its memory is not ours to keep."""
    return getattr(torch.cuda, "is_current_stream_capturing", _never)()  # looked up now: ``devices`` may redirect it


def _mode():
    """Return the grad mode that a cast made now belongs to."""
    return True if _grad_is_enabled() else _mode_without_grad()


def _mode_without_grad():
    return "inference" if _in_inference() else False


def _memory(tensor):
    """Return the address of a tensor's memory, the same for all views of it; None where it has none."""
    try:
        return (tensor.untyped_storage if hasattr(tensor, "untyped_storage") else tensor.storage)().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, fake and wrapped tensors
        return None


def is_weight(tensor):
    """Return whether a tensor is one whose casts are worth keeping: a plain parameter, or a leaf that is trained."""
    kind = type(tensor)
    return kind is Parameter or (kind is _Tensor and tensor.requires_grad and tensor.is_leaf)


class _Entry:
    """The casts of one weight, by grad mode, and the state of the weight that they are true of."""

    __slots__ = ("reference", "version", "pointer", "requires_grad", "casts")

    def __init__(self, reference, weight):
        self.reference = reference
        self.version = weight._version
        self.pointer = weight.data_ptr()
        self.requires_grad = weight.requires_grad
        self.casts = {}


class WeightCache:
    """Casts of weights by ``make``, one per weight, weight version and grad mode."""

    def __init__(self, make):
        self._make = make
        self._entries = {}
        self._is_empty = True
        self._aliases = {}

    def cast(self, weight):
        """Return ``make(weight)``, from an earlier call where that is still true.

        A cast made without gradients is never given where they are wanted, nor one of inference mode outside it.
        """
        if _functorch_level() is not None or _tracing_state() is not None:  # what is made here belongs to a transform
            return self._make(weight)
        entry = self._entries.get(id(weight))
        if entry is None or entry.reference() is not weight:
            return self._cast_first(weight)
        version, pointer, requires_grad = weight._version, weight.data_ptr(), weight.requires_grad
        if entry.version != version or entry.pointer != pointer or entry.requires_grad != requires_grad:
            entry.casts.clear()
            entry.version, entry.pointer, entry.requires_grad = version, pointer, requires_grad
        mode = True if _grad_is_enabled() else _mode_without_grad()
        found = entry.casts.get(mode)
        if found is None:
            found = self._make(weight)
            self._keep(entry, weight, mode, found)
        return found

    def _cast_first(self, weight):
        """Cast a weight that has no entry; make it one, unless it has no version (inference mode) or no memory (fake)."""
        cast = self._make(weight)
        if type(cast) is _Tensor and not is_compiling() and not getattr(weight, "is_inference", bool)():
            entry = self._entries[id(weight)] = _Entry(weakref.ref(weight, _Forget(self, id(weight))), weight)
            self._keep(entry, weight, _mode(), cast)
        return cast

    def _keep(self, entry, weight, mode, cast):
        if type(cast) is _Tensor and not (self._aliases and self._has_alias(weight)):
            if not (weight.is_cuda and _capturing()):
                entry.casts[mode] = cast
                self._is_empty = False

    def _has_alias(self, weight):
        aliases = self._aliases.get(id(weight))
        if not aliases:
            return False
        alive = [alias for alias in aliases if alias() is not None]
        if alive:
            self._aliases[id(weight)] = alive
            return True
        self._aliases.pop(id(weight), None)
        return False

    def note_alias(self, weight, alias):
        """Remember that ``alias`` shares the weight's memory without sharing its version."""
        self._entries.pop(id(weight), None)
        if not is_weight(weight):
            return
        alive = [other for other in self._aliases.get(id(weight), ()) if other() is not None]
        # The reference to the alias ends the note: when it dies the list is pruned by the next look.
        self._aliases[id(weight)] = alive + [weakref.ref(alias)]

    def note_replaced(self, weight, value):
        """Remember that ``weight.data = value`` was done: what still shares the weight's memory is an alias."""
        memory = _memory(weight)
        old = [alias() for alias in self._aliases.pop(id(weight), ())]
        for alias in old + [value, value._base]:
            if alias is not None and _memory(alias) == memory:
                self.note_alias(weight, alias)
        self._entries.pop(id(weight), None)

    def clear(self):
        """Forget every cast. What is known of aliases stays."""
        if not self._is_empty:
            self._is_empty = True
            for entry in list(self._entries.values()):  # a list, since weights may die meanwhile
                entry.casts.clear()
        if self._aliases:
            for key, aliases in list(self._aliases.items()):
                if all(alias() is None for alias in aliases):
                    self._aliases.pop(key, None)

    def __len__(self):
        return sum(bool(entry.casts) for entry in list(self._entries.values()))


class _Forget:
    """Weak reference callback: drop the entry of a weight that died. Holds the cache weakly itself."""

    __slots__ = ("_cache", "_key")

    def __init__(self, cache, key):
        self._cache = weakref.ref(cache)
        self._key = key

    def __call__(self, reference):
        cache = self._cache()
        if cache is not None:
            entry = cache._entries.get(self._key)
            if entry is not None and entry.reference is reference:
                cache._entries.pop(self._key, None)


def watch_data(caches, patches):
    """Make ``Tensor.data`` tell the caches what it gives away and what it replaces."""
    original = _data_descriptor()

    def get_data(self):
        alias = original.__get__(self, type(self))
        for cache in caches:
            cache.note_alias(self, alias)
        return alias

    def set_data(self, value):
        original.__set__(self, value)
        for cache in caches:
            cache.note_replaced(self, value)

    def delete_data(self):
        original.__delete__(self)

    patches.set(_Tensor, "data", property(get_data, set_data, delete_data, original.__doc__))


def _data_descriptor():
    for kind in _Tensor.__mro__:
        if "data" in vars(kind):
            return vars(kind)["data"]
    raise AttributeError("torch.Tensor has no attribute 'data'")
