"""``Links``: what an adapter shares with its session. ``Stage`` and ``Passes``: the state of an iteration."""

import enum
import threading
from typing import NamedTuple


class Stage(enum.Enum):
    """The state of an optimizer within an iteration. Calls that it does not allow raise an error."""

    READY = "ready for a backward pass"
    SCALED = "holding gradients that are still scaled"
    DELAYED = "holding gradients of a pass with delay_unscale whose scale was 1"


class Passes(threading.local):
    """The number of scaled backward passes (scale not 1) that have ended in this thread, and the last one's scale."""

    ended = 0
    scale = 1.0

    def note(self, scale):
        """Count one."""
        self.ended, self.scale = self.ended + 1, scale


class Links(NamedTuple):
    """What an adapter shares with its session. Copies of an optimizer share it, so they stay in the session.

    ``stepping(weights)``: the context manager of a step; ``weights()`` are the weights that it changes.
    ``resumed(function)``: ``function``, with the casts that are active now. ``first_scaler()``: the loss scaler that
    Apex's method names use. ``is_shared_by_hand()``: whether ranks may share weights without a data-parallel wrapper.
    ``passes``, ``writes``, ``observers``: the session's ``Passes``, ``Writes`` and observers.

    Callbacks: ``on_skip(loss_id, scaler)`` for every skipped step; ``on_foreign(adapter)`` for a step on scaled
    gradients of another optimizer's backward pass; ``on_copy(adapter)`` for every copy of an optimizer;
    ``on_plain(adapter)`` for a step on gradients of a backward pass without ``scale_loss``.
    """

    stepping: object
    resumed: object
    first_scaler: object
    on_skip: object
    on_foreign: object
    on_copy: object
    on_plain: object
    is_shared_by_hand: object
    passes: object
    writes: object
    observers: list

    def __deepcopy__(self, memo):
        return self
