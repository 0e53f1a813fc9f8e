"""Apply the table of redirections to torch, and undo it; ``Target``, the device that replaces CUDA."""

import copy
import functools
import os
import sys
import threading
from types import FunctionType

import torch

from ...engine.casting import patch_targets, torch_compile
from ...errors import AmpValueError
from ...support.patching import PatchStack
from ...support.torch_compat import devices, features, torch_names
from ..after_import import ImportHook
from . import name_table
from .replacements import device_arguments, unsupported
from .replacements.device_queries import DeviceQueries

#: The class itself, before ``replacements.class_proxies.device`` replaces it.
_Device = torch.device


class Target:
    """One device in place of all CUDA devices.

    A ``torch.device("cuda")`` keeps its type, which scripts read, and is translated where it is used. Every index
    refers to the same device, including ``cuda:1`` on rank 1.

    Args:
        name: "cpu", "mps", "xpu" or "xla".

    Raises:
        AmpValueError: this machine or torch has no such device.
    """

    def __init__(self, name):
        if name == "cuda" or not (name == "meta" or devices.is_available(name)):
            raise AmpValueError(
                "CUDA cannot be redirected to {!r}: expected cpu, mps, xpu or xla, and this torch has {} here.".format(
                    name, ", ".join(features.available_devices())
                )
            )
        self.type = name
        self.module = devices.module_of(name) if name != "cpu" else None
        self.shared = {}  # objects that several replacements share, created by the first of them
        self._local = threading.local()
        count = self.module.device_count() if hasattr(self.module, "device_count") else 1
        self._devices = [_Device(name)] if count < 2 else [_Device(name, index) for index in range(count)]

    def means_cuda(self, value):
        """Return whether a device argument (string, ``torch.device``, or index) means a CUDA device."""
        if type(value) is _Device:  # no isinstance: the compiler of torch 2.1 does not support it for a tensor's device
            return value.type == "cuda"
        if isinstance(value, str):
            return value == "cuda" or value.startswith("cuda:")
        return isinstance(value, int) and not isinstance(value, bool)

    def translated(self, value):
        """Return a device argument translated: the target's device for CUDA, anything else unchanged."""
        return self.device(value) if self.means_cuda(value) else value

    def device(self, value=None):
        """Return the ``torch.device`` that a CUDA device is translated to; for None, the current one."""
        if len(self._devices) == 1:
            return self._devices[0]
        index = self.index(value)
        return self._devices[(self.current if index is None else index) % len(self._devices)]

    def index(self, value):
        """Return the index in a device argument, or None."""
        if type(value) is _Device:
            return value.index
        return _Device(value).index if isinstance(value, str) else value

    @property
    def current(self):
        """The current index of this thread."""
        return getattr(self._local, "index", 0)

    @current.setter
    def current(self, index):
        self._local.index = index
        if hasattr(self.module, "set_device"):
            self.module.set_device(self.device(index))

    def count(self):
        """Return the number of devices of this machine, but at least one per process under a launcher."""
        return max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), len(self._devices))

    def is_on_target(self, tensor):
        """Return whether a tensor is on the target, so that it counts as a CUDA tensor."""
        return tensor.device.type == self.type

    def synchronize(self):
        """Wait until the work on the device is done."""
        if self.module is not None:
            self.module.synchronize()


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
            patch_targets.script_originals(self._originals, self._patches)
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
            owner = torch_names.find(row.owner)
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
        if row.rule == name_table.CALLED:
            return _calling(row.detail, self.target, original)
        if row.rule == name_table.ARGUMENTS:
            return device_arguments.with_translated_arguments(self.target, original, row.detail)
        if row.rule == name_table.QUERY:
            query = getattr(self._queries, name)
            return _calling(lambda target, original, *args, **kwargs: query(*args, **kwargs), self.target, original)
        if row.rule in (name_table.RETURNS, name_table.ADDED):
            return _calling(lambda *args, **kwargs: copy.copy(row.detail), self.target, original)
        if row.rule == name_table.UNSUPPORTED:
            return unsupported.raising_replacement(row.owner + "." + name, self.target, original, row.detail)
        return row.detail(self.target, original)


def _calling(function, target, original):
    @functools.wraps(original)
    def call(*args, **kwargs):
        return function(target, original, *args, **kwargs)

    return call


def _do_nothing():
    """Replace a function that a torch without CUDA does not have."""


def _fill_torch_caches():
    # torch.utils._device lists the factory functions once and caches the list, which must have torch's own functions.
    module = getattr(torch.utils, "_device", None)
    if module is not None:
        module._device_constructors()
