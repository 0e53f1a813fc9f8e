"""The autocast flags of the calling thread, read and set directly.

torch addresses them by device type since 2.4; before that each device has a pair of functions of its own. The nesting
counter of ``torch.autocast`` is not touched: setting a flag here enters no context.
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
    """Return (is_enabled, set_enabled, get_dtype, set_dtype) for a device type, or None where it has no autocast."""
    if not IS_BY_DEVICE:
        names = _LEGACY.get(device, ("",))
        return tuple(getattr(torch, name) for name in names) if hasattr(torch, names[-1]) else None
    functions = tuple(functools.partial(getattr(torch, name), device) for name in _NAMES)
    try:
        functions[0]()
    except RuntimeError:  # "meta", for one
        return None
    return functions


def region_dtype(device):
    """Return the dtype of the autocast region that the calling thread is in, for a device type; None outside of one."""
    functions = _functions(device)
    return functions[2]() if functions is not None and functions[0]() else None


class Flags:
    """The autocast flags of some device types, in the calling thread."""

    def __init__(self, devices):
        self._of = {}  # device type -> what ``_functions`` returns
        self.choose(devices)

    def choose(self, devices):
        """Make ``enter`` and ``is_enabled`` apply to these device types, as far as they have autocast."""
        for device in devices:
            if device not in self._of:
                self._of[device] = _functions(device)
        self.devices = tuple(device for device in devices if self._of[device] is not None)
        #: (is_enabled, set_enabled, get_dtype, set_dtype) of each of them
        self.chosen = [self._of[device] for device in self.devices]
        # One device is the common case, made fast.
        self.is_enabled = self.chosen[0][0] if len(self.chosen) == 1 else self._is_any_enabled

    def _is_any_enabled(self):
        return not self.chosen or any(is_enabled() for is_enabled, _, _, _ in self.chosen)

    def read(self):
        """Return all flags of this thread, also of devices that are not chosen, as one value that ``write`` takes."""
        state = {
            device: (functions[0](), functions[2]()) for device, functions in self._of.items() if functions is not None
        }
        return state, torch.is_autocast_cache_enabled()

    def write(self, state):
        """Set all flags of this thread to what ``read`` returned."""
        by_device, cache_enabled = state
        for device, (enabled, dtype) in by_device.items():
            _, set_enabled, _, set_dtype = self._of[device]
            set_enabled(enabled)
            set_dtype(dtype)
        torch.set_autocast_cache_enabled(cache_enabled)

    def enter(self, low):
        """Turn autocast on in this thread, in the dtype ``low``, without torch's cache of weights.

        That cache keeps the first cast of a weight for as long as the region lasts, and this one does not end
        (pytorch/pytorch#54241 and similar issues; still so in torch 2.13). ``weight_cache`` is used instead.
        """
        for _, set_enabled, _, set_dtype in self.chosen:
            set_enabled(True)
            set_dtype(low)
        torch.set_autocast_cache_enabled(False)
