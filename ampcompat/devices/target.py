"""The device that takes CUDA's place.

Owns: ``Target``: which device it is, what means CUDA, and what that becomes; which index a thread calls current.
Must not touch: torch's namespaces.
The surprise: a ``torch.device("cuda")`` stays what it is (its ``type`` is "cuda", as scripts ask), and is translated where it is
used. Every index means the one device: rank 1's ``cuda:1`` too.
"""

import os
import threading

import torch

from ..errors import AmpValueError
from ..tables import torch_facts

#: Devices that need nothing of torch but its own tensors.
_BARE = ("cpu", "meta")


class Target:
    """One device in place of all CUDA devices.

    Args:
        name: "cpu", "mps" or "xpu".

    Raises:
        AmpValueError: this machine or torch has no such device.
    """

    def __init__(self, name):
        self.type = name
        self.shared = {}  # what several stand-ins have in common, made by the first of them
        self._chosen = threading.local()
        if name == "cuda" or name not in torch_facts.available_devices() + ("meta",):
            raise AmpValueError(
                "CUDA cannot be redirected to {!r}: expected cpu, mps or xpu, and this torch has {} here.".format(
                    name, ", ".join(torch_facts.available_devices())
                )
            )
        self.module = None if name in _BARE else getattr(torch, name)

    def means_cuda(self, value):
        """Return whether a device argument (string, ``torch.device``, or an index) means a CUDA device."""
        if isinstance(value, str):
            return value == "cuda" or value.startswith("cuda:")
        if isinstance(value, torch.device):
            return value.type == "cuda"
        return isinstance(value, int) and not isinstance(value, bool)

    def of(self, value):
        """Return what a device argument becomes: the target's device for CUDA, anything else unchanged."""
        return self.device(self.index(value)) if self.means_cuda(value) else value

    def device(self, index=None):
        """Return the ``torch.device`` that a CUDA index stands for."""
        count = self.module.device_count() if hasattr(self.module, "device_count") else 1
        return torch.device(self.type) if index is None or count < 2 else torch.device(self.type, index % count)

    def index(self, value):
        """Return the index that a device argument names, or None where it names none."""
        if isinstance(value, str):
            value = torch.device(value)
        return value.index if isinstance(value, torch.device) else value

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
        """Return how many devices the script sees: one, or one per process of this machine where a launcher says so."""
        return max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)

    def holds(self, tensor):
        """Return whether a tensor is on the target, which is to say that it counts as a CUDA tensor."""
        return tensor.device.type == self.type

    def synchronize(self):
        """Wait until the device has done what it was given."""
        if self.module is not None:
            self.module.synchronize()
