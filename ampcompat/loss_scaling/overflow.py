"""Which optimizer steps are skipped because of an overflow.

``Skips`` (one per optimizer adapter) keeps the results of overflow checks for the next step; ``Judgement`` is one check
over the gradients of one or several backward passes.
"""

import copy

import torch

from .scaler import UNREAD


class Judgement:
    """One overflow check for one or several backward passes of a loss, made when their gradients are complete.

    Args:
        scaler: the ``LossScaler`` of the loss.
        loss_id: its number.
        adapters: of the optimizers whose params the last pass reached. Adapters of earlier passes whose check with the
            same scaler was postponed are added.
    """

    def __init__(self, scaler, loss_id, adapters):
        self.scaler = scaler
        self.loss_id = loss_id
        self.adapters = list(adapters)
        for adapter in adapters:
            earlier = adapter.skips.unjudged.get(scaler)
            if earlier is not None:
                self.adapters += [each for each in earlier.adapters if each not in self.adapters]

    def postpone(self):
        """Postpone the check to a later backward pass, or to the step if no pass comes before it."""
        for adapter in self.adapters:
            adapter.skips.unjudged[self.scaler] = self

    def give(self, groups=()):
        """Check for overflow now, pass the result to every adapter, and return it as a ``Verdict``.

        Args:
            groups: process groups whose ranks skip the same steps.
        """
        on_device = all([adapter.skips.are_on_device() for adapter in self.adapters])
        verdict = self.scaler.judge(on_device, groups if self.scaler.checks else ())
        for adapter in self.adapters:
            adapter.skips.unjudged.pop(self.scaler, None)
            if self.scaler.checks:
                adapter.heed(verdict, self.loss_id, self.scaler)
        return verdict


class Skips:
    """The results of the overflow checks of the gradients that an optimizer steps on next.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._waiting = []  # (Verdict, scaler) for the next step
        self._heeded = []  # the verdicts that the last step used
        self.unjudged = {}  # scaler -> Judgement, postponed until gradients are reduced

    def heed(self, verdict, scaler):
        """Skip the next step if ``verdict`` is an overflow."""
        if len(self._waiting) >= UNREAD:  # many passes without a step: keep the overflows only
            self._waiting = [waiting for waiting in self._waiting if waiting[0].overflowed()]
        self._waiting.append((verdict, scaler))

    def are_coming(self):
        """Return whether the next step will be skipped. Synchronizes with the device."""
        return any(verdict.overflowed() for verdict, _ in self._waiting)

    def are_on_device(self):
        """Return whether the optimizer accepts ``found_inf`` and skips on the device (torch's fused optimizers)."""
        return getattr(self._optimizer, "_step_supports_amp_scaling", False)

    def take_flag(self):
        """Return the unread ``found_inf`` tensor for the step that begins now; None if ``take`` must be called."""
        self._judge_at_last()
        if not self._waiting or not self.are_on_device():
            return None
        verdicts = [verdict for verdict, _ in self._waiting]
        if not all([verdict.is_on_one_device() for verdict in verdicts]):
            return None
        flags = [verdict.flags[0] for verdict in verdicts]
        if len({flag.device for flag in flags}) > 1:
            return None
        self._waiting, self._heeded = [], verdicts
        return flags[0] if len(flags) == 1 else torch.stack(flags).max()

    def take(self):
        """Return whether to skip the step that begins now, and update the scalers. Synchronizes with the device."""
        self._judge_at_last()
        taken, self._waiting = self._waiting, []
        self._heeded = [verdict for verdict, _ in taken]
        for _, scaler in taken:
            scaler.settle()
        return self.was_last()

    def was_last(self):
        """Return whether the last step was skipped. Synchronizes with the device."""
        return any(verdict.overflowed() for verdict in self._heeded) if self._heeded else False

    def _judge_at_last(self):
        for judgement in list(self.unjudged.values()) if self.unjudged else ():
            judgement.give()

    def __deepcopy__(self, memo):
        # Verdicts and scalers belong to the session. A copied optimizer shares them.
        twin = Skips(copy.deepcopy(self._optimizer, memo))
        twin._waiting, twin._heeded = list(self._waiting), list(self._heeded)
        return twin
