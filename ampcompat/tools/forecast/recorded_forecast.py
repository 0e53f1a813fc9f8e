"""Adds a forecast to a recorded run's events: ``RunOptions(watch="ampcompat.tools.forecast.recorded_forecast")``."""

from ...abtest.judging import curves
from ...errors import AmpError
from . import forecast_json
from .forecast_observer import ForecastObserver

#: The number of optimizer steps of a run without a limit.
STEPS = 50


class ForecastEvents(ForecastObserver):
    """A ``ForecastObserver`` whose last event has the key ``forecast``: ``forecast_json.make``, or why there is none.

    Args:
        recorder: the ``Recorder`` of the run.
        steps: the number of optimizer steps, or None.
    """

    def __init__(self, recorder, steps):
        super().__init__(steps or STEPS)
        self._recorder = recorder
        self._has_ended = self._is_told = False

    def step_ended(self, next_step):
        """End a step; None: the run has ended."""
        super().step_ended(next_step)
        self._has_ended = next_step is None

    def new_events(self):
        """Return the event of the forecast when the run has ended, once."""
        if not self._has_ended or self._is_told:
            return []
        self._is_told = True
        losses = curves.curve(self._recorder.run, ("loss", 0))
        try:
            return [{"forecast": forecast_json.make(self.observed(losses))}]
        except AmpError as error:  # the run has its own end event
            return [{"forecast": str(error)}]


def make(recorder, steps):
    """Return the observer of a run, a context manager."""
    return ForecastEvents(recorder, steps)
