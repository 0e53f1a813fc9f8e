"""The loss scale: static, or grown and backed off as gradients overflow.

Owns: ``LossScaler`` (the automaton and its numbers), ``Verdict`` (one answer to "did it overflow?").
Must not touch: optimizers, models; it is handed lists of gradients.
The surprise: an update waits. ``judge`` asks the device whether a gradient was inf or nan, but the host reads the answer once, when
somebody needs it: the next ``step``, the next scaled loss, ``loss_scale()``.

The automaton (Micikevicius et al. 2018, section 3.2, with Apex's numbers):

    start   scale = min(2**16, max), unskipped = 0
    overflow            scale = max(scale / 2, min), unskipped = 0, the step is skipped
    2000 good in a row  scale = min(scale * 2, max), unskipped = 0
    otherwise           unskipped = unskipped + 1
"""

import re

import torch

from ..errors import AmpError
from ..tables.opt_levels import DYNAMIC
from . import tensors

#: The smallest normal float32: below it a scale loses precision, and at 0 it would stay for ever.
SMALLEST_SCALE = 2.0**-126


class Verdict:
    """Whether the gradients of one ``scale_loss`` overflowed. Read from the device once, on demand."""

    def __init__(self, found):
        self._found = found
        self._overflowed = None if found else False

    def overflowed(self):
        """Return the answer as a bool; the first call waits for the device."""
        if self._overflowed is None:
            self._overflowed = any(flag.item() != 0 for flag in self._found)
            self._found = ()
        return self._overflowed


class LossScaler:
    """One loss scale and what becomes of it.

    Args:
        loss_scale: a float for a scale that stays, or ``"dynamic"``.
        init_scale: where a dynamic scale starts (at most ``max_loss_scale``).
        scale_factor: the factor of a backoff and, without ``growth_factor``, of a growth.
        scale_window: good steps in a row before the scale grows.
        min_loss_scale: a dynamic scale does not back off below this.
        max_loss_scale: nor grow above this.
    """

    def __init__(
        self,
        loss_scale,
        init_scale=2.0**16,
        scale_factor=2.0,
        scale_window=2000,
        min_loss_scale=None,
        max_loss_scale=2.0**24,
    ):
        self.dynamic = loss_scale == DYNAMIC
        self._scale = min(max_loss_scale, init_scale) if self.dynamic else float(loss_scale)
        self._scale_factor = scale_factor
        self._scale_seq_len = scale_window
        self._min_loss_scale = min_loss_scale
        self._max_loss_scale = max_loss_scale
        self._good_steps = 0
        self.skips_in_a_row = 0
        self._found = {}
        self._pending = None

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
        self._loss_scale = state_dict["loss_scale"]
        self._unskipped = state_dict["unskipped"]

    # -- one backward pass ---------------------------------------------------------------------------------------------

    def scale_loss(self, loss, dtype):
        """Return ``loss`` in ``dtype``, times the scale."""
        scale = self._loss_scale
        loss = loss.to(dtype)
        return loss if scale == 1.0 else loss * scale

    def unscale_(self, grads, scale):
        """Divide gradients by ``scale`` in place; a dynamic scaler remembers whether one was inf or nan.

        Args:
            grads: floating tensors of any device and dtype; sparse ones must be coalesced.
            scale: the float that the loss was multiplied by.
        """
        if not self.dynamic and scale == 1.0:
            return
        for alike in tensors.grouped(grads):
            if self.dynamic:
                tensors.check_and_scale_(alike, 1.0 / scale, self._flag(alike[0].device))
            else:
                tensors.multiply_(alike, 1.0 / scale)

    def judge(self):
        """Close the books on what ``unscale_`` saw since the last time, and return the ``Verdict``."""
        self.settle()
        self._pending = Verdict(list(self._found.values()))
        self._found = {}
        return self._pending

    def settle(self):
        """Let the last verdict change the scale, now that somebody wants to know."""
        verdict, self._pending = self._pending, None
        if verdict is not None:
            self._advance(self.dynamic and verdict.overflowed())

    def _advance(self, overflowed):
        if overflowed:
            floor = self._min_loss_scale or SMALLEST_SCALE
            self._scale = max(floor, self._scale / self._scale_factor)
            self._good_steps = 0
            self.skips_in_a_row += 1
            return
        self.skips_in_a_row = 0
        self._good_steps += 1
        if self.dynamic and self._good_steps == self._scale_seq_len:
            self._scale = min(self._max_loss_scale, self._scale * self._scale_factor)
            self._good_steps = 0

    def _flag(self, device):
        if device not in self._found:
            self._found[device] = torch.zeros((), dtype=torch.float32, device=device)
        return self._found[device]

    # -- what Apex's own loops call ------------------------------------------------------------------------------------

    def clear_overflow_state(self):
        """Forget what ``unscale`` has seen."""
        self._found = {}

    def unscale(self, model_grads, master_grads, unused_scale, models_are_masters=False, scale_override=None):
        """Write ``model_grads`` divided by the scale into ``master_grads`` (the same tensors, or float32 copies).

        Args:
            model_grads, master_grads: tensors of equal shapes, pairwise.
            unused_scale: ignored, as it was in Apex.
            models_are_masters: the two lists are the same tensors.
            scale_override: ``(out_scale, in_scale, …)``; gradients are multiplied by ``out_scale / in_scale``.
        """
        scale = self._loss_scale
        if scale_override is not None:
            scale = scale_override[1] / scale_override[0]
        pairs = [pair for pair in zip(model_grads, master_grads) if pair[0] is not None]
        with torch.no_grad():
            if not models_are_masters:
                for model_grad, master_grad in pairs:
                    if model_grad is not master_grad:
                        master_grad.copy_(model_grad)
            self.unscale_([master_grad for _, master_grad in pairs], scale)

    def update_scale(self):
        """Change the scale by what ``unscale`` has seen, and return whether the step should be skipped."""
        verdict = self.judge()
        self.settle()
        return self.dynamic and verdict.overflowed()


def scaler_states(state_dict):
    """Return ``{index: state}`` of the scalers in a checkpoint.

    Raises:
        AmpError: the dict has keys that are none of ours; the message names them.
    """
    matches = {key: re.match(r"loss_scaler(\d+)$", str(key)) for key in state_dict}
    unknown = sorted(repr(key) for key, match in matches.items() if not match)
    if unknown:
        raise AmpError(
            "amp.load_state_dict expects what amp.state_dict() returned (keys loss_scaler0, loss_scaler1, …) and "
            "found {}. Pass checkpoint['amp'], not the whole checkpoint.".format(", ".join(unknown))
        )
    return {int(match.group(1)): state_dict[key] for key, match in matches.items()}
