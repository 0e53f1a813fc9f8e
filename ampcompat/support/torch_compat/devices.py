"""Torch's modules of functions for a device, such as ``torch.cuda``; for torch_xla's, the same functions."""

import contextlib
import importlib

import torch

from . import features


class Xla:
    """The functions of ``torch.cuda`` that ampcompat uses, for torch_xla's device."""

    def __init__(self):
        self._functions = importlib.import_module("torch_xla.core.xla_model")

    def synchronize(self, device=None):
        """Wait for the graphs that were started."""
        self._functions.wait_device_ops()

    def eagerly(self):
        """Return a context in which operations are computed when they are called, not as a graph when one is read."""
        return importlib.import_module("torch_xla.experimental").eager_mode_context(True)

    def manual_seed(self, seed):
        """Seed the generator; its state is one number, the seed at first."""
        self._functions.set_rng_state(seed % 2**63)

    def seed(self):
        """Seed the generator at random."""
        self.manual_seed(torch.Generator().seed())

    def get_rng_state(self):
        """Return the state of the generator, a number of 64 bits, as a tensor of its bytes."""
        return torch.tensor(list(self._functions.get_rng_state().to_bytes(8, "little")), dtype=torch.uint8)

    def set_rng_state(self, state):
        """Set the state of the generator."""
        self._functions.set_rng_state(int.from_bytes(bytes(state.tolist()), "little"))


def module_of(device_type):
    """Return the module of functions for a type of device; None for those without."""
    return Xla() if device_type == "xla" else getattr(torch, device_type, None) if device_type != "meta" else None


def is_available(device_type):
    """Return whether torch can compute on a type of device here. For "xla", torch_xla is imported."""
    if device_type == "xla":
        try:
            importlib.import_module("torch_xla.core.xla_model")
        except (ImportError, OSError):
            return False
    return device_type in features.available_devices()


def synchronize(device):
    """Wait until a device, a ``torch.device``, has computed what it was given so far."""
    wait = getattr(module_of(device.type), "synchronize", None) if device.type != "cpu" else None
    if wait is not None:
        wait() if device.type == "mps" else wait(device)


def eagerly(device_type):
    """Return a context in which a device computes operations when they are called, as most do anyway."""
    return getattr(module_of(device_type), "eagerly", contextlib.nullcontext)()
