"""The device that replaces CUDA.

A ``torch.device("cuda")`` keeps its type, which scripts read, and is translated where it is used. Every index refers to
the same device, including ``cuda:1`` on rank 1.
"""

import os
import threading

import torch

from ..errors import AmpValueError
from ..support.torch_compat import features

#: Devices without a module of functions such as ``torch.mps``.
_WITHOUT_MODULE = ("cpu", "meta")

#: The class itself, before ``replacements.class_proxies.device`` replaces it.
_Device = torch.device


class Target:
    """One device in place of all CUDA devices.

    Args:
        name: "cpu", "mps" or "xpu".

    Raises:
        AmpValueError: this machine or torch has no such device.
    """

    def __init__(self, name):
        if name == "cuda" or name not in features.available_devices() + ("meta",):
            raise AmpValueError(
                "CUDA cannot be redirected to {!r}: expected cpu, mps or xpu, and this torch has {} here.".format(
                    name, ", ".join(features.available_devices())
                )
            )
        self.type = name
        self.module = None if name in _WITHOUT_MODULE else getattr(torch, name)
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
