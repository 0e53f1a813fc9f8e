"""Measure the second step of a script, then end the script."""

from ..memory.memory_observer import SamplingObserver
from ..memory_on_fake_tensors.fake_step import choose_foreach

#: A step ends with the optimizer whose first step comes last; optimizers that have not stepped are left out.
_MOST_STEPS = 50


class StepMeasured(BaseException):
    """Raised to end a script. Not an ``Exception``, so that scripts that catch exceptions end too."""


class StepRecorder(SamplingObserver):
    """Measures from the end of the first step, in which every optimizer has stepped, to the end of the second.

    Args:
        counted_as: "cuda" or "cpu".

    Attributes:
        usage: the ``MemoryUsage``, or None until it is measured.
        level, policy: the opt level, and its ``Policy``; None before ``amp.initialize``.
    """

    def __init__(self, counted_as):
        super().__init__()
        self.usage = None
        self.level = self.policy = None
        self._counted_as = counted_as
        self._optimizers = []
        self._stepped = set()  # ids of optimizers
        self._steps = 0
        self._last = None  # the optimizer with which a step ends

    def initialized(self, session, models, optimizers):
        """Count these models and optimizers."""
        self.level, self.policy = session.policy.opt_level, session.policy
        super().initialized(session, models, optimizers)
        self._optimizers += list(optimizers)
        if self._counted_as == "cuda":
            for optimizer in optimizers:
                choose_foreach(optimizer)

    def after_step(self, record):
        """Sample: optimizer state exists. Start measuring, or end the script, if this was the end of a step."""
        super().after_step(record)
        self._steps += 1
        self._stepped.add(id(record.optimizer))
        if self._meter.is_measuring:
            if record.optimizer is self._last:
                self.usage = self._meter.stop()
                raise StepMeasured
        elif self._steps >= _MOST_STEPS or all(id(each) in self._stepped for each in self._optimizers):
            self._last = record.optimizer
            self._meter.start()

    def tracked(self):
        """Return (models, optimizers) that were initialized."""
        return self._meter.tracked()

    def num_params(self):
        """Return the number of elements of their params."""
        models, _ = self._meter.tracked()
        return sum({id(param): param.numel() for each in models for param in each.parameters()}.values())
