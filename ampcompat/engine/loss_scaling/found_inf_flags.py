"""The found-inf flags of a loss scaler, and the overflow buffer that clients of Apex read and replace."""

import torch

from ...errors import AmpTypeError


class OverflowFlags:
    """The results of the overflow checks since the last ``take``. Nothing here synchronizes with a device.

    There is one flag per device. Once a client has read ``buffer``, or has assigned its own, the flags are written to
    the buffer, and its value alone decides, whoever wrote it.
    """

    def __init__(self):
        self._flags = {}  # device -> float32 tensor of shape (), 1 where something was inf or nan
        self._buffer = None  # an integer tensor of one element, not 0 after inf or nan
        self._is_taken = False  # whether ``take`` has returned the buffer's value already
        self._device = None  # the last device that a flag was asked for on

    def on(self, device):
        """Return the flag of a device, a float32 tensor of shape (), to be set to 1."""
        flag = self._flags.get(device)
        if flag is None:
            flag = torch.full((), 0.0, dtype=torch.float32, device=device)  # faster than ``zeros``
            self._flags[device], self._device = flag, device
        return flag

    @property
    def buffer(self):
        """An int32 tensor of shape (1,), not 0 after inf or nan."""
        if self._buffer is None:
            self._buffer = torch.zeros(1, dtype=torch.int32, device=self._device or _default_device())
            self.end_check()
        return self._buffer

    @buffer.setter
    def buffer(self, buffer):
        if not isinstance(buffer, torch.Tensor) or buffer.numel() != 1:
            raise AmpTypeError(f"_overflow_buf must be a tensor of one element, not {buffer!r}.")
        self._flags, self._buffer, self._is_taken = {}, buffer, False

    def begin_check(self):
        """Clear the buffer if it holds what an earlier ``take`` has returned."""
        if self._is_taken:
            self._buffer.zero_()
            self._is_taken = False

    def end_check(self):
        """Write the flags into the buffer, if a client uses it."""
        if self._buffer is not None:
            for flag in self._flags.values():
                self._buffer.masked_fill_(flag.to(self._buffer.device) != 0, 1)
            self._flags = {}

    def take(self):
        """Return the flags, float32 tensors of shape () on their devices, and clear them.

        The buffer keeps its value until the next check, so that clients can read it.
        """
        if self._buffer is not None:
            self._is_taken = True
            return [(self._buffer.detach() != 0).any().to(torch.float32)]
        flags, self._flags = list(self._flags.values()), {}
        return flags

    def state(self):
        """Return a copy of the flags and the buffer, and whether that was taken, for ``reset``."""
        flags = {device: flag.clone() for device, flag in self._flags.items()}
        return flags, None if self._buffer is None else self._buffer.clone(), self._is_taken

    def reset(self, state=None):
        """Clear the flags and the buffer, or set them to what ``state`` returned earlier."""
        flags, value, self._is_taken = ({}, None, False) if state is None else state
        self._flags = dict(flags)
        if self._buffer is not None:
            if value is None:
                self._buffer.zero_()
            else:
                self._buffer.copy_(value)
            self.end_check()


def _default_device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
