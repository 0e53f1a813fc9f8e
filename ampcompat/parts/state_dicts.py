"""A state dict that is float32 at every level, out and in.

Owns: ``MasterTable``, the hooks on a cast model's state dict.
Must not touch: weights, but for the masters that a loaded state dict refreshes.
The surprise: what comes out is the *master's* value where there is one. The half weight has lost bits that a resumed run needs; only
where somebody changed the half weight meanwhile (an EMA swap) does its own value count. Copies and pickles of a model carry hooks
without masters.
"""

import weakref

import torch

from . import tensors


class MasterTable:
    """Finds the master of a half param. Holds neither."""

    def __init__(self):
        self._masters = {}  # id(param) -> (weak param, weak master)

    def add(self, pairs):
        """Remember (model, master) pairs."""
        for model, master in pairs:
            self._masters[id(model)] = (weakref.ref(model), weakref.ref(master))

    def find(self, param):
        """Return the master of ``param``, or None."""
        model, master = self._masters.get(id(param), (None, None))
        return master() if model is not None and model() is param else None

    def __deepcopy__(self, memo):
        return MasterTable()

    def __reduce__(self):
        return MasterTable, ()


class O2StateDictHook:
    """Widens the floating entries of a module's state dict. torch's ONNX exporter knows this class name.

    Args:
        dtype: the dtype of floating entries.
        masters: a ``MasterTable``.
    """

    def __init__(self, dtype, masters):
        self.dtype = dtype
        self.masters = masters
        self._names = {}  # id(param or buffer) -> the key under which it was widened last

    def __call__(self, module, state_dict, prefix, local_metadata):
        """Replace the module's own entries in ``state_dict``; other things than tensors pass."""
        named = list(module._parameters.items()) + list(module._buffers.items())
        for name, owned in named:
            key = prefix + name
            value = state_dict.get(key)
            if isinstance(value, torch.Tensor) and tensors.is_narrower(value, self.dtype):
                tied = self._tied(state_dict, owned, value)
                state_dict[key] = self._widen(value, self.masters.find(owned)) if tied is None else tied
                self._names[id(owned)] = key
        return state_dict

    def _tied(self, state_dict, owned, value):
        """Return what this same weight was widened to in this same state dict: shared weights stay shared."""
        other = state_dict.get(self._names.get(id(owned)))
        if isinstance(other, torch.Tensor) and other.dtype is self.dtype and other.shape == value.shape:
            return other if torch.equal(other.to(value.dtype), value) else None
        return None

    def _widen(self, value, master):
        if master is None or value.requires_grad:
            return value.to(self.dtype)
        master = master.detach()
        return torch.where(master.to(value.dtype) == value, master, value.to(self.dtype))

    def __deepcopy__(self, memo):
        return O2StateDictHook(self.dtype, MasterTable())

    def __reduce__(self):
        return O2StateDictHook, (self.dtype, MasterTable())


class RefreshMasters:
    """Copies what is loaded into a module's half params to their masters first, before the half params round it.

    Args:
        module: whose params.
        masters: a ``MasterTable``.
    """

    def __init__(self, module, masters):
        self.module = weakref.ref(module)
        self.masters = masters

    def __call__(self, state_dict, prefix, *rest):
        """Run as a pre-hook of ``_load_from_state_dict``."""
        module = self.module()
        for name, param in module._parameters.items() if module is not None else ():
            value, master = state_dict.get(prefix + name), self.masters.find(param)
            if master is not None and isinstance(value, torch.Tensor) and value.shape == master.shape:
                with torch.no_grad():
                    master.copy_(value)

    def __deepcopy__(self, memo):
        return _nothing

    def __reduce__(self):
        return _get_nothing, ()


def _nothing(*args):
    """Stand in for ``RefreshMasters`` on copies of a model, whose params have no masters."""


def _get_nothing():
    return _nothing


def hook(model, dtype, masters, patches):
    """Hook every module of ``model``; undone by ``patches``."""
    widen = O2StateDictHook(dtype, masters)
    for module in model.modules():
        patches.defer(module._register_state_dict_hook(widen).remove)
        patches.defer(module._register_load_state_dict_pre_hook(RefreshMasters(module, masters)).remove)
