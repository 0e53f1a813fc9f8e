"""Measure the second step of a script, and then end the script."""

from ...support.observer import Observer
from ..memory.meter import MemoryMeter
from ..memory_on_fake_tensors.fake_step import choose_foreach

#: A step ends with the optimizer whose first step comes last; optimizers that have not stepped by then are left out.
_MOST_STEPS = 50


class StepMeasured(BaseException):
    """Ends a script from within. Not an ``Exception``, so that scripts that catch those end too."""


class StepRecorder(Observer):
    """Measures from the end of a first step, in which every optimizer has stepped, to the end of the second.

    Args:
        counted_as: "cuda" or "cpu".

    Attributes:
        usage: the ``MemoryUsage``, or None until it is measured.
        level, policy: the opt level, and its ``Policy``; None before ``amp.initialize``.
    """

    def __init__(self, counted_as):
        self.usage = None
        self.level = self.policy = None
        self._counted_as = counted_as
        self._meter = MemoryMeter()
        self._optimizers = []
        self._stepped = set()  # ids of optimizers
        self._steps = 0
        self._last = None  # the optimizer with which a step ends

    def initialized(self, session, models, optimizers):
        """Count these models and optimizers."""
        self.level, self.policy = session.policy.opt_level, session.policy
        self._meter.track(models, optimizers)
        self._optimizers += list(optimizers)
        if self._counted_as == "cuda":
            for optimizer in optimizers:
                choose_foreach(optimizer)

    def before_backward(self, backward):
        """Sample: all activations exist."""
        self._meter.sample()

    def after_backward(self, backward):
        """Sample: all gradients exist."""
        self._meter.sample()

    def before_step(self, record):
        """Sample: gradients and masters exist."""
        self._meter.before_step()

    def after_step(self, record):
        """Sample: optimizer state exists. Start measuring, or end the script, if this was the end of a step."""
        self._meter.after_step()
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
