"""Apply the table of redirections to torch, and undo it."""

import copy
import functools
import sys
from types import FunctionType

import torch

from ..engine.casting import other_patches, torch_compile
from ..support.patching import PatchStack
from ..support.torch_compat import dotted_names
from . import name_table
from .after_import import ImportHook
from .replacements import (
    class_proxies,
    device_arguments,
    mixed_precision,
    several_gpus,
    streams,
    tensor_movement,
    tensor_types,
    unsupported,
)
from .replacements.device_queries import DeviceQueries
from .target import Target

_MODULES = (mixed_precision, class_proxies, several_gpus, streams, tensor_movement, tensor_types, unsupported)
_MODULE_NAMED = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


class Redirection:
    """CUDA redirected to one device (see ``Target``), until ``undo``."""

    def __init__(self, device):
        self.target = Target(device)
        self._queries = DeviceQueries(self.target)
        self._patches = PatchStack()
        self._originals = []  # (owner, name, original) of functions that TorchScript must find
        missing = [name for name in name_table.LAZY_MODULES if name not in sys.modules]
        self._import_hook = ImportHook(missing, self._apply)

    def begin(self):
        """Apply every row whose owner this torch has."""
        _fill_torch_caches()
        try:
            self._apply(None, *[name for name in name_table.LAZY_MODULES if name in sys.modules])
            other_patches.script_originals(self._originals, self._patches)
            torch_compile.patch_compile(self._patches)
        except BaseException:
            self.undo()
            raise
        self._import_hook.start()

    def undo(self):
        """Restore everything."""
        self._import_hook.stop()
        self._patches.undo()

    def _apply(self, *lazy_modules):
        """Apply the rows of a lazily imported module; None: all other rows."""
        replacements = []  # all are created before the first is set, since creating one may use the original of another
        for row in [row for row in name_table.rows() if name_table.lazy_module(row) in lazy_modules]:
            owner = dotted_names.find(row.owner)
            for name in row.names:
                if owner is not None and (hasattr(owner, name) or row.rule == name_table.ADDED):
                    original = getattr(owner, name, _do_nothing)
                    replacements.append((owner, name, original, self._replacement(row, name, original)))
        for owner, name, original, replacement in replacements:
            if replacement is not original:
                if owner is torch and isinstance(replacement, FunctionType):
                    replacement.__module__, replacement.__qualname__ = "torch", name  # for pickle
                    vars(replacement)[torch_compile.MARK] = True
                self._patches.set(owner, name, replacement)
                if owner is torch and callable(original) and not isinstance(original, type):
                    self._originals.append((owner, name, original))

    def _replacement(self, row, name, original):
        if row.rule == name_table.FACTORY:
            return _with_translated_device(self.target, original)
        if row.rule == name_table.ARGUMENTS:
            return device_arguments.with_translated_arguments(self.target, original, row.detail)
        if row.rule == name_table.QUERY:
            return _with_name_of(original, getattr(self._queries, name))
        if row.rule in (name_table.RETURNS, name_table.ADDED):
            return _with_name_of(original, lambda *args, **kwargs: copy.copy(row.detail))
        if row.rule == name_table.UNSUPPORTED:
            return unsupported.raising_replacement(row.owner + "." + name, self.target, original, row.detail)
        module, function = row.detail.split(".")
        return getattr(_MODULE_NAMED[module], function)(self.target, original)


def _with_translated_device(target, original):
    @functools.wraps(original)
    def make(*args, **kwargs):
        if "device" in kwargs:
            kwargs["device"] = target.translated(kwargs["device"])
        if "pin_memory" in kwargs:
            del kwargs["pin_memory"]
        return original(*args, **kwargs)

    return make


def _with_name_of(original, function):
    @functools.wraps(original)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def _do_nothing():
    """Replace a function that a torch without CUDA does not have."""


def _fill_torch_caches():
    # torch.utils._device lists the factory functions once and caches the list, which must have torch's own functions.
    module = getattr(torch.utils, "_device", None)
    if module is not None:
        module._device_constructors()
