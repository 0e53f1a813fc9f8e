"""What an adapter shares with its session, and where its optimizer stands.

Owns: ``Links``, ``Stage``.
Must not touch: anything; these are records.
The surprise: a copy of an optimizer shares the links, so it goes on in the same session.
"""

import enum
from typing import NamedTuple


class Stage(enum.Enum):
    """Where an optimizer stands in its iteration; a call in the wrong place is an error with a sentence."""

    READY = "ready for a backward pass"
    SCALED = "holding gradients that are still scaled"


class Links(NamedTuple):
    """What an adapter shares with its session; a copy of an optimizer shares it too.

    ``stepping()``: the context of a step. ``resumed(function)``: ``function``, to run under the casts of now.
    ``first_scaler()``: the loss scaler that Apex's own method names mean. ``on_skip(loss_id, scaler)`` hears of every skipped
    step, ``on_foreign(adapter)`` of a step on gradients that another optimizer's pass left scaled, ``on_copy(adapter)`` of every
    copy of an optimizer, and puts it in force. ``observers``: the session's, who hear of steps.
    """

    stepping: object
    resumed: object
    first_scaler: object
    on_skip: object
    on_foreign: object
    on_copy: object
    observers: list

    def __deepcopy__(self, memo):
        return self
