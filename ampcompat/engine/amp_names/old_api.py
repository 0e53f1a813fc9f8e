"""``amp.init`` and the ``Handle`` that it returns, Apex's API from before 2019."""

from __future__ import annotations

from typing import Union

import torch

from ...errors import AmpError
from ...opt_levels import level_named
from ..session import process_state
from ..session.disabled_session import disable
from ..session.process_state import enter
from ..session.training_session import new_session


def init(
    enabled: bool = True,
    loss_scale: Union[float, str] = "dynamic",
    enable_caching: bool = True,
    verbose: bool = False,
    allow_banned: bool = False,
    patch_type: torch.dtype = torch.float16,
) -> Handle:
    """Cast torch's functions as O1 does, without models or optimizers; ``_deactivate()`` of the result undoes that.

    Args:
        enabled: False returns a handle that does nothing.
        loss_scale, enable_caching, verbose: accepted; the loss is scaled by ``amp.scale_loss`` after ``initialize``.
        allow_banned: compute functions that are unsafe in half in float32 instead of raising an error.
        patch_type: the dtype that functions cast to, as in AMD's fork: ``torch.float16`` or ``torch.bfloat16``.
    """
    if not enabled:
        disable(0)
        return handle_of(process_state.current())
    session = process_state.current()
    if session is None or not session.enabled:
        session = new_session()
    session.process_casts.allow_banned = session.process_casts.allow_banned or allow_banned
    level = "O4" if patch_type is torch.bfloat16 else "O1"
    dtypes = level_named(level, session.dtypes).dtypes
    enter(session)
    try:
        session.process_casts.open(dtypes)
    except BaseException:
        if not session.is_initialized() and session.choice is None:
            process_state.leave(session)
        raise
    return handle_of(session)


def handle_of(session):
    """Return the ``Handle`` of a session: one object, as in Apex, where it is the result of ``init``."""
    if not hasattr(session, "handle"):
        session.handle = Handle(session)
    return session.handle


class Handle:
    """What ``init`` returns, also ``_amp_state.handle``: Apex's handle on one session.

    Methods that are no longer supported raise an error that names their replacement.
    """

    def __init__(self, session):
        self._session = session
        self._pause = None  # the open pause of a script that has set ``_is_active`` to False

    @property
    def _is_active(self):
        """Whether casts are active in this thread; a script that sets it to False pauses them until it sets True."""
        return self.is_active()

    @_is_active.setter
    def _is_active(self, value):
        pause, self._pause = self._pause, None
        if pause is not None:
            pause.__exit__(None, None, None)
        if not value:
            self._pause = self._session.cast_backend.paused()
            self._pause.__enter__()

    def is_active(self) -> bool:
        """Return whether casts are active in this thread."""
        return self._session.cast_backend.active()

    def _disable_casts(self):
        return self._session.cast_backend.paused()

    def _clear_cache(self):
        self._session.cast_backend.clear_cache()

    def _deactivate(self):
        """Stop casting functions; ``amp.init`` and ``amp.initialize`` start it again.

        Models and optimizers stay as they are; a session that has none is closed.
        """
        session = self._session
        if session.enabled and session.is_initialized():
            session.process_casts.stop()
        elif session.enabled and session in process_state.sessions:
            session.close()

    @property
    def has_cache(self) -> bool:
        """Casts of weights are always cached."""
        return True

    def scale_loss(self, loss, optimizer):
        """Raise an ``AmpError`` that names the replacement, ``amp.scale_loss``; disabled, yield the loss itself."""
        if not self._session.enabled:
            return self._session.scale_loss(loss, optimizer)
        raise AmpError(
            "handle.scale_loss is the API from before 2019. Use model, optimizer = amp.initialize(model, optimizer) "
            "and with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()."
        )

    def wrap_optimizer(self, optimizer, num_loss=1):
        """Raise an ``AmpError`` that names the replacement, ``amp.initialize``; disabled, return a wrapper."""
        if not self._session.enabled:
            return UnscaledOptimizer(optimizer, self)
        raise AmpError(
            "handle.wrap_optimizer is the API from before 2019. Use model, optimizer = amp.initialize(model, "
            f"optimizer, num_losses={num_loss})."
        )


class UnscaledOptimizer:
    """What ``wrap_optimizer`` of a disabled handle returns: the optimizer, with a ``scale_loss`` that does nothing."""

    def __init__(self, optimizer, handle):
        self._optimizer, self._handle = optimizer, handle

    def scale_loss(self, loss):
        """Return a context that yields the loss itself."""
        return self._handle.scale_loss(loss, self._optimizer)

    def __getattr__(self, name):
        return getattr(self._optimizer, name)
