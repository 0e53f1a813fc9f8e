"""Apply the table of redirections to torch, and undo it."""

import functools
import importlib
import sys
from contextlib import contextmanager
from types import FunctionType

import torch

from ..casting import compile, jit_script
from ..patching import PatchStack
from . import (
    amp_redirect,
    arguments,
    class_proxies,
    redirections,
    single_device,
    streams,
    tensor_movement,
    tensor_types,
    unsupported,
)
from .cuda_queries import CudaQueries
from .import_hook import ImportHook
from .target import Target

_MODULES = (amp_redirect, class_proxies, single_device, streams, tensor_movement, tensor_types, unsupported)
_MODULE_NAMED = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


class Redirection:
    """CUDA redirected to one device, until ``undo``.

    Args:
        device: "cpu", "mps" or "xpu".
    """

    def __init__(self, device):
        self.target = Target(device)
        self._queries = CudaQueries(self.target)
        self._patches = PatchStack()
        self._originals = []  # (owner, name, entry) of functions that TorchScript must see
        missing = [name for name in redirections.LAZY_MODULES if name not in sys.modules]
        self._import_hook = ImportHook(missing, self._around)

    def begin(self):
        """Apply every row whose owner this torch has."""
        _fill_torch_caches()
        loaded = [None] + [name for name in redirections.LAZY_MODULES if name in sys.modules]
        try:
            self._apply([row for row in redirections.rows() if redirections.lazy_module(row) in loaded])
            jit_script.script_originals(self._originals, self._patches)
            compile.patch_compile(self._patches)
        except BaseException:
            self.undo()
            raise
        self._import_hook.start()

    def undo(self):
        """Restore everything."""
        self._import_hook.stop()
        self._patches.undo()

    @contextmanager
    def _around(self, module):
        """Apply the rows of a module after its import."""
        yield
        self._apply([row for row in redirections.rows() if redirections.lazy_module(row) == module])

    def _apply(self, rows):
        planned = []
        for row in rows:
            owner = resolved(row.owner)
            for name in row.names:
                if owner is not None and (hasattr(owner, name) or row.how == redirections.ADDED):
                    planned.append((owner, name, getattr(owner, name, _nothing), row))
        replaced = [(owner, name, entry, self._replacement(row, name, entry)) for owner, name, entry, row in planned]
        for owner, name, entry, replacement in replaced:
            if replacement is not entry:
                if owner is torch and isinstance(replacement, FunctionType):
                    replacement.__module__, replacement.__qualname__ = "torch", name  # for pickle
                    vars(replacement)[compile.MARK] = True
                self._patches.set(owner, name, replacement)
                if owner is torch and _is_function(entry):
                    self._originals.append((owner, name, entry))

    def _replacement(self, row, name, entry):
        if row.how == redirections.FACTORY:
            return _factory(self.target, entry)
        if row.how == redirections.ARGUMENTS:
            return arguments.redirected(self.target, entry, row.detail)
        if row.how == redirections.QUERY:
            return _named_as(entry, getattr(self._queries, name))
        if row.how in (redirections.NOTHING, redirections.ADDED):
            return _named_as(entry, _nothing)
        if row.how == redirections.UNSUPPORTED:
            return unsupported.raising(row.owner + "." + name, self.target, entry, row.detail)
        module, function = row.detail.split(".")
        return getattr(_MODULE_NAMED[module], function)(self.target, entry)


def resolved(dotted):
    """Return the module or class of this name, or None where this torch has none."""
    parts = dotted.split(".")
    owner = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        try:
            owner = importlib.import_module(".".join(parts[:depth]))
        except ImportError:
            owner = getattr(owner, part, None)
    return owner


def _is_function(entry):
    """Return whether an entry is a function, not a class."""
    return callable(entry) and not isinstance(entry, type)


def _factory(target, original):
    @functools.wraps(original)
    def make(*args, **kwargs):
        if "device" in kwargs:
            kwargs["device"] = target.of(kwargs["device"])
        if "pin_memory" in kwargs:
            del kwargs["pin_memory"]
        return original(*args, **kwargs)

    return make


def _named_as(original, function):
    @functools.wraps(original)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def _nothing(*args, **kwargs):
    return None


def _fill_torch_caches():
    # torch.utils._device lists the factory functions once and caches the list: it must see torch's own functions.
    module = getattr(torch.utils, "_device", None)
    if module is not None:
        module._device_constructors()
