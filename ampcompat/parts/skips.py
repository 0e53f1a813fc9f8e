"""What an optimizer's coming step must heed, and whether its last one was skipped.

Owns: ``Skips``, one per adapter: a flag, never a replaced ``step``; ``Judgement``, which asks for a verdict.
Must not touch: gradients, the scale.
The surprise: where the optimizer can skip by itself (torch's fused ones), it is handed the answer unread.
"""

import copy

import torch

from .scaler import UNREAD


class Judgement:
    """The verdict on some passes of one loss, to be given once, when their gradients are what the step will use.

    Args:
        scaler: the ``LossScaler`` of the loss.
        loss_id: its number.
        adapters: of the optimizers whose params the last pass reached; those of earlier passes that still wait for the
            same scaler join them.
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
        """Leave it to a later pass, or to the step if there is none before."""
        for adapter in self.adapters:
            adapter.skips.unjudged[self.scaler] = self

    def give(self, groups=()):
        """Let every adapter heed the verdict of now, and return it.

        Args:
            groups: process groups whose ranks must agree.
        """
        on_device = all([adapter.skips.are_on_device() for adapter in self.adapters])
        verdict = self.scaler.judge(on_device, groups if self.scaler.checks else ())
        for adapter in self.adapters:
            adapter.skips.unjudged.pop(self.scaler, None)
            if self.scaler.checks:
                adapter.heed(verdict, self.loss_id, self.scaler)
        return verdict


class Skips:
    """The verdicts over the gradients that an optimizer is about to step on.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._waiting = []  # (Verdict, scaler) for the coming step
        self._heeded = []  # the verdicts that the last step heeded
        self.unjudged = {}  # scaler -> Judgement that waits for gradients to be reduced

    def heed(self, verdict, scaler):
        """Skip the coming step if ``verdict`` says so."""
        if len(self._waiting) >= UNREAD:  # passes without steps: keep what matters
            self._waiting = [waiting for waiting in self._waiting if waiting[0].overflowed()]
        self._waiting.append((verdict, scaler))

    def are_coming(self):
        """Return whether the coming step would be skipped; waits for the device."""
        return any(verdict.overflowed() for verdict, _ in self._waiting)

    def are_on_device(self):
        """Return whether the optimizer skips by itself, on the device, when it is handed a flag."""
        return getattr(self._optimizer, "_step_supports_amp_scaling", False)

    def take_flag(self):
        """Return what to hand the optimizer as ``found_inf`` for the step that begins now, or None: ask ``take``."""
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
        """Return whether to skip the step that begins now; waits for the device, and lets the scalers change."""
        self._judge_at_last()
        taken, self._waiting = self._waiting, []
        self._heeded = [verdict for verdict, _ in taken]
        for _, scaler in taken:
            scaler.settle()
        return self.was_last()

    def was_last(self):
        """Return whether the last step was skipped; waits for the device."""
        return any(verdict.overflowed() for verdict in self._heeded) if self._heeded else False

    def _judge_at_last(self):
        for judgement in list(self.unjudged.values()) if self.unjudged else ():
            judgement.give()

    def __deepcopy__(self, memo):
        # Verdicts and scalers are the session's, and a copied optimizer shares them.
        twin = Skips(copy.deepcopy(self._optimizer, memo))
        twin._waiting, twin._heeded = list(self._waiting), list(self._heeded)
        return twin
