"""The loss scale: static, or grown and backed off as gradients overflow.

Owns: ``LossScaler`` (the automaton and its numbers), ``Verdict`` (one answer to "did it overflow?").
Must not touch: optimizers, models; it is handed lists of gradients.
The surprise: an update waits. ``judge`` leaves the answer on the device, and the host replays the automaton when somebody needs a number. Where
every optimizer takes the answer on the device too, a mirror of the scale there goes ahead, and the host need never look.

The automaton (Micikevicius et al. 2018, section 3.2, with Apex's numbers):

    start   scale = min(2**16, max), unskipped = 0
    overflow            scale = max(scale / 2, min), unskipped = 0, the step is skipped
    2000 good in a row  scale = min(scale * 2, max), unskipped = 0
    otherwise           unskipped = unskipped + 1
"""

import re

import torch

from ..errors import AmpError
from ..tables import torch_facts
from ..tables.opt_levels import DYNAMIC
from . import agreement, tensors

#: The smallest normal float32: below it a scale loses precision, and at 0 it would stay for ever.
SMALLEST_SCALE = 2.0**-126

#: Verdicts that may wait unread before the host reads them all at once: bounds memory, costs one wait in so many steps.
UNREAD = 100


class Verdict:
    """Whether the gradients of one ``scale_loss`` overflowed. Read from the device once, on demand."""

    def __init__(self, flags):
        self.flags = flags
        self.answer = None if flags else False  # None until it is read
        self._listeners = []

    def overflowed(self):
        """Return the answer as a bool; the first call waits for the device."""
        if self.answer is None:
            self.answer = any(flag.tolist() != 0.0 for flag in self.flags)
        return self.answer

    def is_on_one_device(self):
        """Return whether there is one flag, which an optimizer could take as its ``found_inf``."""
        return len(self.flags) == 1

    def tell(self, listener):
        """Call ``listener()`` when the scale has been changed because of this verdict, if it is an overflow."""
        self._listeners.append(listener)

    def report(self):
        """Call the listeners, once."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


class LossScaler:
    """One loss scale and what becomes of it.

    Args:
        loss_scale: a float for a scale that stays, or ``"dynamic"``.
        init_scale: where a dynamic scale starts (at most ``max_loss_scale``).
        scale_factor: the factor of growth, and its inverse that of backoff, unless these are given.
        scale_window: good steps in a row before the scale grows.
        min_loss_scale: a dynamic scale does not back off below this.
        max_loss_scale: nor grow above this.
        growth_factor, backoff_factor: instead of ``scale_factor``.
        hysteresis: overflows since the last growth before the scale backs off; every one of them skips its step.
        checks_static: a static scale skips the steps that overflow, too.
        process_group: ranks that skip together (``agreement.checked_group``), or None: each for itself.
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
        self.checks = self.dynamic or checks_static
        self.process_group = process_group if self.checks else None
        self.skips_in_a_row = 0
        self._scale = min(max_loss_scale, init_scale) if self.dynamic else float(loss_scale)
        self._good_steps = 0
        self._growth_factor = growth_factor or scale_factor
        self._backoff_factor = backoff_factor or 1.0 / scale_factor
        self._scale_seq_len = scale_window
        self._min_loss_scale = min_loss_scale
        self._max_loss_scale = max_loss_scale
        self._hysteresis = self._patience = hysteresis
        self._flags = {}  # device -> float32 tensor of shape (), 1 where something was inf or nan
        self._pending = []  # verdicts that the host has not replayed
        self._mirror = None  # (scale, good steps) on the device, ahead of the host

    # -- the numbers, as clients of Apex read and write them -----------------------------------------------------------

    def loss_scale(self):
        """Return the current scale as a float."""
        return self._loss_scale

    @property
    def _loss_scale(self):
        self.settle()
        return self._scale

    @_loss_scale.setter
    def _loss_scale(self, value):
        self.settle()
        self._scale = float(value)

    @property
    def _unskipped(self):
        self.settle()
        return self._good_steps

    @_unskipped.setter
    def _unskipped(self, value):
        self.settle()
        self._good_steps = int(value)

    def state_dict(self):
        """Return ``{"loss_scale": float, "unskipped": int}``."""
        return {"loss_scale": self._loss_scale, "unskipped": self._unskipped}

    def load_state_dict(self, state_dict):
        """Take over a scale and its count of good steps."""
        self._loss_scale, self._unskipped = state_dict["loss_scale"], state_dict["unskipped"]

    # -- one backward pass ---------------------------------------------------------------------------------------------

    def scale_now(self):
        """Return the current scale without waiting for the device: a float, or a tensor of shape () there."""
        return self._mirror[0] if self._mirror is not None else self._loss_scale

    def unscale_(self, groups, scale):
        """Divide gradients by ``scale`` in place; remember whether one was inf or nan, if this scaler checks.

        Args:
            groups: lists of dense floating tensors, of one device and dtype each (``tensors.grouped``).
            scale: what the loss was multiplied by: a float, or a tensor of shape ().
        """
        if not self.checks and is_one(scale):
            return
        factor = 1.0 / scale
        if not self.checks:
            tensors.multiply_(groups, factor)
            return
        for alike in groups:
            tensors.check_and_scale_(alike, factor, self._flag(alike[0].device))

    def judge(self, on_device=False, groups=()):
        """Close the books on what ``unscale_`` saw since the last time, and return the ``Verdict``.

        Args:
            on_device: all that heed the verdict can do so on the device, so let the scale change there.
            groups: of ranks that must agree, beside the scaler's own.
        """
        verdict = Verdict(agreement.agreed(list(self._flags.values()), self.process_group, *groups))
        self._flags = {}
        on_device = on_device and self._can_mirror(verdict)
        if not on_device or len(self._pending) >= UNREAD:
            self.settle()
        self._pending.append(verdict)
        if on_device:
            self._advance_mirror(verdict.flags[0])
        return verdict

    def settle(self):
        """Replay what the verdicts since the last time did to the scale, now that somebody wants to know."""
        pending, self._pending = self._pending, []
        self._mirror = None
        for verdict in pending:
            overflowed = self.checks and verdict.overflowed()
            self._advance(overflowed)
            if overflowed:
                verdict.report()

    def _advance(self, overflowed):
        if overflowed:
            self.skips_in_a_row += 1
            self._good_steps = 0
            self._patience -= 1
            if self.dynamic and self._patience <= 0:
                self._scale = max(self._floor(), self._scale * self._backoff_factor)
            return
        self.skips_in_a_row = 0
        self._good_steps += 1
        if self.dynamic and self._good_steps == self._scale_seq_len:
            self._scale = min(self._max_loss_scale, self._scale * self._growth_factor)
            self._good_steps = 0
            self._patience = self._hysteresis

    def is_at_floor(self):
        """Return whether a dynamic scale has backed off as far as it may."""
        return self.dynamic and self._scale <= self._floor()

    def _floor(self):
        return self._min_loss_scale or SMALLEST_SCALE

    def _can_mirror(self, verdict):
        plain = self.dynamic and self._hysteresis == 1 and self._floor() <= self._scale
        return plain and verdict.is_on_one_device() and torch_facts.has_fused_scale_update(verdict.flags[0].device.type)

    def _advance_mirror(self, flag):
        if self._mirror is None:
            self._mirror = (
                torch.full((), self._scale, dtype=torch.float32, device=flag.device),
                torch.full((), self._good_steps, dtype=torch.int32, device=flag.device),
            )
        # A new tensor for a new scale: gradients that are still scaled remember theirs by identity.
        scale, good_steps = self._mirror[0].clone(), self._mirror[1]
        torch._amp_update_scale_(
            scale, good_steps, flag, self._growth_factor, self._backoff_factor, self._scale_seq_len
        )
        self._mirror = (scale.clamp_(self._floor(), self._max_loss_scale), good_steps)

    def _flag(self, device):
        if device not in self._flags:
            self._flags[device] = torch.zeros((), dtype=torch.float32, device=device)
        return self._flags[device]

    # -- what Apex's own loops call ------------------------------------------------------------------------------------

    def overflow_state(self):
        """Return what ``unscale`` has seen since the last verdict."""
        return {device: flag.clone() for device, flag in self._flags.items()}

    def clear_overflow_state(self, earlier=None):
        """Forget what ``unscale`` has seen, but for what ``overflow_state`` returned earlier."""
        self._flags = earlier or {}

    def unscale(self, model_grads, master_grads, unused_scale, models_are_masters=False, scale_override=None):
        """Write ``model_grads`` divided by the scale into ``master_grads`` (the same tensors, or float32 copies).

        Args:
            model_grads, master_grads: tensors of equal shapes, pairwise.
            unused_scale: ignored, as it was in Apex.
            models_are_masters: the two lists are the same tensors.
            scale_override: ``(out_scale, in_scale, …)``; gradients are multiplied by ``out_scale / in_scale``.
        """
        scale = self._loss_scale if scale_override is None else scale_override[1] / scale_override[0]
        pairs = [pair for pair in zip(model_grads, master_grads) if pair[0] is not None]
        with torch.no_grad():
            for model_grad, master_grad in () if models_are_masters else pairs:
                if model_grad is not master_grad:
                    master_grad.copy_(model_grad)
            self.unscale_(tensors.grouped([master_grad for _, master_grad in pairs]), scale)

    def update_scale(self):
        """Change the scale by what ``unscale`` has seen, and return whether the step should be skipped."""
        verdict = self.judge()
        self.settle()
        return self.checks and verdict.overflowed()


def is_one(scale):
    """Return whether a scale is known, without waiting for a device, to change nothing."""
    return not isinstance(scale, torch.Tensor) and scale == 1.0


def is_same(scale, other):
    """Return whether two scales are known to be the same; a tensor is a new one for every change of the scale."""
    if isinstance(scale, torch.Tensor) or isinstance(other, torch.Tensor):
        return scale is other
    return scale == other


def scaler_states(state_dict):
    """Return ``{index: state}`` of the scalers in a checkpoint of ``amp``, or in one of torch's GradScaler.

    Raises:
        AmpError: the dict has keys that are none of ours; the message names them.
    """
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
