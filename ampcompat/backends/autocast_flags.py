"""The flags of torch's autocast, read and set directly.

Owns: the two generations of their names (by device type since torch 2.4; a pair of functions per device before).
Must not touch: the nesting counter: a flag set here is no entered context.
The surprise: every one of these flags belongs to the calling thread alone.
"""

import functools

import torch

#: Whether torch has one set of flags addressed by device type (torch >= 2.4).
IS_BY_DEVICE = hasattr(torch, "get_autocast_dtype")
_LEGACY = {
    "cuda": ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_gpu_dtype", "set_autocast_gpu_dtype"),
    "cpu": ("is_autocast_cpu_enabled", "set_autocast_cpu_enabled", "get_autocast_cpu_dtype", "set_autocast_cpu_dtype"),
    "xpu": ("is_autocast_xpu_enabled", "set_autocast_xpu_enabled", "get_autocast_xpu_dtype", "set_autocast_xpu_dtype"),
}
_NAMES = ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype")


def _functions(device):
    """Return (is_enabled, set_enabled, get_dtype, set_dtype) for a device type."""
    if IS_BY_DEVICE:
        return tuple(functools.partial(getattr(torch, name), device) for name in _NAMES)
    return tuple(getattr(torch, name) for name in _LEGACY[device])


class Flags:
    """The autocast flags of some device types, in whatever thread asks."""

    def __init__(self, devices):
        self.devices = tuple(devices)
        self._of = [_functions(device) for device in self.devices]
        self.is_enabled = self._of[0][0] if len(self._of) == 1 else self._any_enabled

    def _any_enabled(self):
        return any(is_enabled() for is_enabled, _, _, _ in self._of)

    def read(self):
        """Return all flags of this thread as one value that ``write`` takes."""
        state = [(is_enabled(), get_dtype()) for is_enabled, _, get_dtype, _ in self._of]
        return state, torch.is_autocast_cache_enabled()

    def write(self, state):
        """Set all flags of this thread to what ``read`` returned."""
        by_device, cache_enabled = state
        for (_, set_enabled, _, set_dtype), (enabled, dtype) in zip(self._of, by_device):
            set_enabled(enabled)
            set_dtype(dtype)
        torch.set_autocast_cache_enabled(cache_enabled)

    def enter(self, low):
        """Turn autocast on in this thread, in the dtype ``low``, without torch's cache of weights.

        That cache keeps the first cast of a weight for as long as the region lasts, and this one does not end
        (pytorch/pytorch#54241 and its kin; still so in torch 2.13).
        """
        self.write(([(True, low)] * len(self._of), False))

    def leave(self):
        """Turn autocast off in this thread; return how it was on each device, for ``restore``."""
        was = []
        for is_enabled, set_enabled, _, _ in self._of:
            enabled = is_enabled()
            was.append((set_enabled, enabled))
            if enabled:
                set_enabled(False)
        return was

    def restore(self, was):
        """Undo ``leave``."""
        for set_enabled, enabled in was:
            set_enabled(enabled)
