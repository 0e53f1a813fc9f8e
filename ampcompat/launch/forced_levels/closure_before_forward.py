"""First steps with a closure: the model is called within ``step``, but must be prepared before it."""

import functools
from types import MethodType

import torch

from ...engine.optimizers.optimizer_record import record_of
from ...engine.optimizers.step_or_skip import amp_step
from ...support import random_state


class _Prepared(BaseException):
    """Raised in a closure when its model is prepared; handlers of the script do not catch it."""


class FirstSteps:
    """Runs the closure of a first step up to the call of the model, which prepares it; then the step starts over.

    Args:
        waiting: the optimizers whose models are not prepared, a set that changes.
    """

    def __init__(self, waiting):
        self._waiting = waiting
        self._is_trying = False

    def watch(self, optimizer):
        """Replace ``optimizer.step`` until ``release``."""
        step = optimizer.step
        if not isinstance(step, MethodType):
            return

        @functools.wraps(step.__func__)
        def first_step(own, *args, **kwargs):
            closure = kwargs.get("closure", args[0] if args else None)
            if own in self._waiting and callable(closure) and not self._is_trying:
                self._try(closure)
            if record_of(own) is None or record_of(own).is_running:
                return step(*args, **kwargs)
            return amp_step(own, *args, **kwargs)  # a trainer has saved this method and restored it

        optimizer.step = MethodType(first_step, optimizer)

    @staticmethod
    def release(optimizer):
        """Restore ``optimizer.step``, unless a scheduler has replaced it too."""
        code = getattr(vars(optimizer).get("step"), "__code__", None)  # a method has the attributes of its function
        if code is not None and code.co_filename == __file__:
            del optimizer.step

    def _try(self, closure):
        self._is_trying = True
        try:
            with random_state.restored(), torch.enable_grad():
                closure()
        except _Prepared:
            pass
        finally:
            self._is_trying = False

    def prepared(self):
        """Leave the closure that is run to prepare a model, if there is one."""
        if self._is_trying:
            raise _Prepared
