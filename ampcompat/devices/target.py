"""The device that takes CUDA's place.

Owns: ``Target``: which device it is, what means CUDA, and what that becomes; which index a thread calls current.
Must not touch: torch's namespaces.
The surprise: a ``torch.device("cuda")`` stays what it is (its ``type`` is "cuda", as scripts ask), and is translated
where it is used. Every index means the one device: rank 1's ``cuda:1`` too.
"""

import os
import threading

import torch

from ..errors import AmpValueError
from ..tables import torch_facts

#: Devices that need nothing of torch but its own tensors.
_BARE = ("cpu", "meta")

#: The class itself, before ``facades.device`` stands in front of it.
_Device = torch.device


class Target:
    """One device in place of all CUDA devices.

    Args:
        name: "cpu", "mps" or "xpu".

    Raises:
        AmpValueError: this machine or torch has no such device.
    """

    def __init__(self, name):
        if name == "cuda" or name not in torch_facts.available_devices() + ("meta",):
            raise AmpValueError(
                "CUDA cannot be redirected to {!r}: expected cpu, mps or xpu, and this torch has {} here.".format(
                    name, ", ".join(torch_facts.available_devices())
                )
            )
        self.type = name
        self.module = None if name in _BARE else getattr(torch, name)
        self.shared = {}  # what several stand-ins have in common, made by the first of them
        self._chosen = threading.local()
        count = self.module.device_count() if hasattr(self.module, "device_count") else 1
        self._devices = [_Device(name)] if count < 2 else [_Device(name, index) for index in range(count)]

    def means_cuda(self, value):
        """Return whether a device argument (string, ``torch.device``, or an index) means a CUDA device."""
        if isinstance(value, str):
            return value == "cuda" or value.startswith("cuda:")
        if isinstance(value, _Device):
            return value.type == "cuda"
        return isinstance(value, int) and not isinstance(value, bool)

    def of(self, value):
        """Return what a device argument becomes: the target's device for CUDA, anything else unchanged."""
        return self.device(value) if self.means_cuda(value) else value

    def device(self, value=None):
        """Return the ``torch.device`` that a CUDA device stands for; without one, that which is current."""
        if len(self._devices) == 1:
            return self._devices[0]
        index = self.index(value)
        return self._devices[(self.current if index is None else index) % len(self._devices)]

    def index(self, value):
        """Return the index that a device argument names, or None where it names none."""
        if isinstance(value, str):
            value = _Device(value)
        return value.index if isinstance(value, _Device) else value

    @property
    def current(self):
        """The index that this thread calls current."""
        return getattr(self._chosen, "index", 0)

    @current.setter
    def current(self, index):
        self._chosen.index = index
        if hasattr(self.module, "set_device"):
            self.module.set_device(self.device(index))

    def count(self):
        """Return how many devices the script sees: this machine's, or one per process where a launcher says so."""
        return max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), len(self._devices))

    def holds(self, tensor):
        """Return whether a tensor is on the target, which is to say that it counts as a CUDA tensor."""
        return tensor.device.type == self.type

    def synchronize(self):
        """Wait until the device has done what it was given."""
        if self.module is not None:
            self.module.synchronize()
