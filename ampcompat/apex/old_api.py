"""``amp.init``, Apex's API of before 2019."""

from __future__ import annotations

from typing import Union

import torch

from ..opt_levels import level_named
from ..training import state
from ..training.disabled import disable
from ..training.handle import Handle
from ..training.session import new_session
from ..training.state import enter


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
        return state.current().handle
    session = state.current()
    if session is None or not session.enabled:
        session = new_session()
    session.process_casts.allow_banned = session.process_casts.allow_banned or allow_banned
    level = "O4" if patch_type is torch.bfloat16 else "O1"
    session.process_casts.open(level_named(level, session.dtypes).dtypes)
    enter(session)
    return session.handle
