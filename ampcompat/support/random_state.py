"""The state of all random generators: Python's, NumPy's if it is loaded, torch's of the CPU and every accelerator."""

import contextlib
import random
import sys

import torch

from .torch_compat import devices, features


def capture():
    """Return the state, which can be pickled; accelerators that were not used yet are left out."""
    accelerators = {name: module.get_rng_state_all() for name, module in _accelerators().items()}
    numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    return {"python": random.getstate(), "numpy": numpy, "cpu": torch.get_rng_state(), "accelerators": accelerators}


def restore(state):
    """Restore what ``capture`` returned, here or in another process."""
    random.setstate(state["python"])
    if state["numpy"] is not None and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    for name, module in _accelerators().items():
        if name in state["accelerators"]:
            module.set_rng_state_all(state["accelerators"][name])


@contextlib.contextmanager
def restored(state=None):
    """Restore the present state after the block, which begins with ``state`` if one is given."""
    before = capture()
    if state is not None:
        restore(state)
    try:
        yield
    finally:
        restore(before)


class _OneDevice:
    """Gives a module for a type with one device, such as ``torch.mps``, the functions of those with several."""

    def __init__(self, module):
        self._module = module

    def get_rng_state_all(self):
        return [self._module.get_rng_state()]

    def set_rng_state_all(self, states):
        self._module.set_rng_state(states[0])


def _accelerators():
    """Return torch's module of each type of accelerator that has been used: ``torch.cuda``, ``torch.xpu``, …"""
    modules = {name: devices.module_of(name) for name in features.available_devices() if name != "cpu"}
    # A generator whose device was never used has its first state; reading it would initialize the device.
    used = {name: each for name, each in modules.items() if getattr(each, "is_initialized", lambda: True)()}
    return {name: each if hasattr(each, "get_rng_state_all") else _OneDevice(each) for name, each in used.items()}
