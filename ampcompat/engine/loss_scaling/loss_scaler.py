"""The loss scale: static, or dynamic (lowered after an overflow, raised after a number of good steps).

Updates are lazy: ``check_overflow`` leaves the flags on the device, and the host applies the updates when the scale is
read. Where every optimizer accepts ``found_inf``, a copy of the scale is updated on the device, ahead of the host.

The rules (Micikevicius et al. 2018, section 3.2, with Apex's numbers):

    start   scale = min(max(2**16, min), max), unskipped = 0
    overflow            scale = max(scale / 2, min), unskipped = 0, the step is skipped
    2000 good in a row  scale = min(scale * 2, max), unskipped = 0
    otherwise           unskipped = unskipped + 1

A scale that a script writes or loads is kept until one of these updates, whatever the bounds.

The found-inf flags are here too, with the overflow buffer that clients of Apex read and replace.
"""

import itertools
import operator
import re

import torch

from ...errors import AmpError, AmpTypeError
from ...opt_levels import DYNAMIC
from ...support import tensor_lists
from ...support.patching import run_all
from ...support.torch_compat import features
from ...support.torch_compat.thread_blocks import grad_enabled
from .apex_attributes import ApexNames
from .overflow_check import MAX_UNREAD_CHECKS, OverflowCheck, all_reduced

_REQUIRES_GRAD = operator.attrgetter("requires_grad")

#: The smallest normal float32. Below it a scale loses precision, and a scale of 0 could not grow again.
SMALLEST_SCALE = 2.0**-126


class LossScaler(ApexNames):
    """One loss scale, its overflow checks and its updates.

    Args:
        loss_scale: a float for a static scale, or ``"dynamic"``.
        init_scale: the first dynamic scale, as far as the bounds allow it.
        scale_factor: the growth factor; its inverse is the backoff factor. ``growth_factor`` and ``backoff_factor``
            override it.
        scale_window: good steps in a row before the scale grows.
        min_loss_scale: lower bound of a dynamic scale, or None.
        max_loss_scale: upper bound of a dynamic scale.
        growth_factor, backoff_factor: instead of ``scale_factor``.
        hysteresis: number of overflows since the last growth after which the scale is lowered. Each of them skips its
            step.
        checks_static: with a static scale, skip the steps that overflow, too.
        process_group: ranks that skip the same steps (see ``overflow_check.checked_group``), or None.
    """

    def __init__(
        self,
        loss_scale,
        init_scale=2.0**16,
        scale_factor=2.0,
        scale_window=2000,
        min_loss_scale=None,
        max_loss_scale=2.0**24,
        growth_factor=None,
        backoff_factor=None,
        hysteresis=1,
        checks_static=False,
        process_group=None,
    ):
        self.dynamic = loss_scale == DYNAMIC
        self.checks_overflow = self.dynamic or checks_static
        self.process_group = process_group if self.checks_overflow else None
        self.skips_in_a_row = 0
        self._scale = min(max_loss_scale, max(init_scale, min_loss_scale or 0.0)) if self.dynamic else float(loss_scale)
        self._good_steps = 0
        self.growth_factor = growth_factor or scale_factor
        self.backoff_factor = backoff_factor or 1.0 / scale_factor
        self._scale_seq_len = scale_window
        self._min_loss_scale = min_loss_scale
        self._max_loss_scale = max_loss_scale
        self._hysteresis = self._overflows_left = hysteresis
        self._found = OverflowFlags()
        self._overflowed = False  # the last check that the host has applied
        self._pending = []  # checks that the host has not applied to the scale
        self._on_device = None  # (scale, good steps) on the device, ahead of the host

    # -- the values ----------------------------------------------------------------------------------------------------

    def loss_scale(self):
        """Return the current scale as a float."""
        self.sync()
        return self._scale

    def set_loss_scale(self, value):
        """Set the current scale."""
        self.sync()
        self._scale = float(value)

    @property
    def good_steps(self):
        """The number of steps without overflow since the scale has changed; it may be set."""
        self.sync()
        return self._good_steps

    @good_steps.setter
    def good_steps(self, value):
        self.sync()
        self._good_steps = int(value)

    def state_dict(self):
        """Return ``{"loss_scale": float, "unskipped": int}``."""
        return {"loss_scale": self.loss_scale(), "unskipped": self.good_steps}

    def load_state_dict(self, state_dict):
        """Load a scale and its count of good steps."""
        self.set_loss_scale(state_dict["loss_scale"])
        self.good_steps = state_dict["unskipped"]

    # -- one backward pass ---------------------------------------------------------------------------------------------

    def scale_now(self):
        """Return the current scale without synchronizing: a float, or a tensor of shape () on the device."""
        if self._on_device is not None:
            return self._on_device[0]
        return self.loss_scale() if self._pending else self._scale

    def good_steps_now(self):
        """Return the count of good steps without synchronizing: an int, or a tensor of shape () on the device."""
        if self._on_device is not None:
            return self._on_device[1].clone()  # updates change it in place
        self.sync()
        return self._good_steps

    def unscale_(self, groups, scale):
        """Divide gradients by ``scale`` in place; record whether one was inf or nan, if this scaler checks.

        The graph of ``backward(create_graph=True)`` has the division too: optimizers may differentiate gradients.

        Args:
            groups: lists of dense floating tensors, of one device and dtype each (``tensor_lists.grouped``).
            scale: what the loss was multiplied by: a float, or a tensor of shape ().
        """
        if self.is_replaced("unscale"):
            self.unscale_by_client(groups, scale)
        elif self.checks_overflow or not is_one(scale):
            self._unscale_in_place(groups, scale)

    def _unscale_in_place(self, groups, scale):
        factor = 1.0 / scale
        if any(map(_REQUIRES_GRAD, itertools.chain.from_iterable(groups))):
            with grad_enabled(True):
                for grad in [grad for alike in groups for grad in alike]:
                    grad.mul_(factor)
            groups, factor = [[grad.detach() for grad in alike] for alike in groups], 1.0
        if not self.checks_overflow:
            tensor_lists.multiply_(groups, factor)
            return
        self._found.begin_check()
        for alike in groups:
            tensor_lists.check_and_scale_(alike, factor, self._found.on(alike[0].device))
        self._found.end_check()

    def check_overflow(self, on_device=False, groups=()):
        """Return an ``OverflowCheck`` of what ``unscale_`` has recorded since the last call.

        Args:
            on_device: every optimizer accepts ``found_inf``, so update the scale on the device.
            groups: process groups to reduce the flags over, in addition to the scaler's own.
        """
        flags = self._found.take()
        if groups or self.process_group is not None:
            flags = all_reduced(flags, self.process_group, *groups)
        check = OverflowCheck(self, flags)
        on_device = on_device and self._can_update_on_device(check)
        uses_host = not on_device or self._on_device is None
        if self._pending and (uses_host or len(self._pending) >= MAX_UNREAD_CHECKS):
            self.sync()
        self._pending.append(check)
        if on_device:
            self._update_on_device(check.flags[0])
        return check

    def sync(self):
        """Apply the pending checks to the scale. Synchronizes with the device if one has not been read.

        Callbacks read the scale as it is after their check. All checks are applied, even if callbacks raise; then the
        first error is raised, with the others in its chain of contexts.
        """
        calls = []
        for check in self._pending:
            calls.append((self._apply, (check,)))
        self._pending, self._on_device = [], None
        if calls:
            run_all(calls)

    def _apply(self, check):
        overflowed = self.checks_overflow and check.overflowed()
        self.advance(overflowed)
        if overflowed:
            check.run_callbacks()

    def advance(self, overflowed):
        """Update the scale by the result of one check."""
        self._overflowed = overflowed
        if overflowed:
            self.skips_in_a_row += 1
            self._good_steps = 0
            self._overflows_left -= 1
            if self.dynamic and self._overflows_left <= 0:
                self._scale = max(self._floor(), self._scale * self.backoff_factor)
            return
        self.skips_in_a_row = 0
        self._good_steps += 1
        if self.dynamic and self._good_steps >= self._scale_seq_len:
            self._scale = min(self._max_loss_scale, self._scale * self.growth_factor)
            self._good_steps = 0
            self._overflows_left = self._hysteresis

    def is_static_one(self):
        """Return whether the scale is a static 1, overflows are not looked for, and no client replaced a method."""
        return self.leaves_gradients_alone(self._scale) and not self.is_replaced("update_scale")

    def leaves_gradients_alone(self, scale):
        """Return whether ``unscale_`` would neither change nor look at gradients of this scale."""
        return not (self.checks_overflow or self.is_replaced("unscale")) and is_one(scale)

    def is_at_floor(self):
        """Return whether a dynamic scale is at its lower bound."""
        return self.dynamic and self._scale <= self._floor()

    def _floor(self):
        return self._min_loss_scale or SMALLEST_SCALE

    def _can_update_on_device(self, check):
        plain = self.dynamic and self._hysteresis == 1 and self._floor() <= self._scale <= self._max_loss_scale
        return plain and len(check.flags) == 1 and features.has_fused_scale_update(check.flags[0].device.type)

    def _update_on_device(self, flag):
        if self._on_device is None:
            good_steps = min(self._good_steps, self._scale_seq_len - 1)  # torch compares with ==
            self._on_device = (
                torch.full((), self._scale, dtype=torch.float32, device=flag.device),
                torch.full((), good_steps, dtype=torch.int32, device=flag.device),
            )
        # A new tensor for a new scale: ``is_same`` compares scales on the device by identity.
        scale, good_steps = self._on_device[0].clone(), self._on_device[1]
        torch._amp_update_scale_(scale, good_steps, flag, self.growth_factor, self.backoff_factor, self._scale_seq_len)
        self._on_device = (scale.clamp_(self._floor(), self._max_loss_scale), good_steps)


def is_one(scale):
    """Return whether a scale is the float 1. A tensor is never read, and counts as another scale."""
    return not isinstance(scale, torch.Tensor) and scale == 1.0


def is_same(scale, other):
    """Return whether two scales are the same. Tensors are compared by identity: each update makes a new one."""
    if isinstance(scale, torch.Tensor) or isinstance(other, torch.Tensor):
        return scale is other
    return scale == other


def scaler_states(state_dict):
    """Return ``{index: state}`` of the scalers in a checkpoint of ``amp`` or torch's GradScaler; other keys raise."""
    if "scale" in state_dict and "_growth_tracker" in state_dict:
        return {0: {"loss_scale": state_dict["scale"], "unskipped": state_dict["_growth_tracker"]}}
    matches = {key: re.match(r"loss_scaler(\d+)$", str(key)) for key in state_dict}
    unknown = sorted(repr(key) for key, match in matches.items() if not match)
    if unknown:
        raise AmpError(
            "amp.load_state_dict expects what amp.state_dict() returned (keys loss_scaler0, loss_scaler1, …) and "
            "found {}. Pass checkpoint['amp'], not the whole checkpoint.".format(", ".join(unknown))
        )
    for key, state in state_dict.items():
        missing = [name for name in ("loss_scale", "unskipped") if name not in state]
        if missing:
            raise AmpError("amp.load_state_dict found no {} in {!r}.".format(" and no ".join(missing), key))
    return {int(match.group(1)): state_dict[key] for key, match in matches.items()}


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
