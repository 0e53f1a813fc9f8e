"""The session behind MMCV's switches, and its dtypes.

Owns: ``session``, ``dtypes``, and ``Marks``, what the switches have put on modules.
Must not touch: torch; the session does.
The surprise: no call opens it. The first switch that is used does, and ``ampcompat.reset()`` closes it. It casts
functions only within ``auto_fp16``; one that ``amp.initialize`` opened before casts them everywhere, and keeps doing
so.
"""

import threading

from ..parts import forwards
from ..parts.patching import PatchStack
from ..runtime import state
from ..runtime.observers import Observer
from ..runtime.session import new_session
from ..tables import opt_levels

_LOCK = threading.Lock()


def session(opt_level="O1"):
    """Return the current session, opened at ``opt_level`` if there is none; a disabled one is as good as any."""
    found = state.current()
    return found if found is not None and _is_ready(found) else _opened(opt_level)


def _is_ready(found):
    return not found.enabled or found.policy is not None or found.choice is not None


def _opened(opt_level):
    with _LOCK:  # replicas of a model run in threads, and the first of them opens it for all
        found = state.current()
        if found is None:
            found = new_session()
            state.sessions.append(found)
        chosen = policy(found, opt_level)
        if not _is_ready(found) and chosen.patch_torch_functions:
            found.process_casts.is_regional = True
            found.process_casts.open(chosen.dtypes)
        return found


def policy(found, opt_level="O1"):
    """Return the policy of a session, or the one that ``initialize`` at ``opt_level`` would give it."""
    if found.policy is not None:
        return found.policy
    return opt_levels.resolve(opt_level, command_line=found.overrides, dtypes=found.dtypes)[1]


def dtypes(found):
    """Return the ``DtypePair`` of a session, or None where it computes everything in float32."""
    if not found.enabled:
        return None
    chosen = policy(found)
    return chosen.dtypes if chosen.patch_torch_functions or chosen.casts_model else None


class Marks(Observer):
    """The casts around ``forward`` of some modules, as long as their session is open."""

    def __init__(self):
        self.token = forwards.Token()
        self.patches = PatchStack()

    def closed(self, session):
        """Take them off."""
        self.token.close()
        self.patches.undo()


def marks(found):
    """Return the ``Marks`` of a session; of a disabled one, new ones, which last as long as their modules."""
    if not found.enabled:
        return Marks()
    for observer in found.observers:
        if isinstance(observer, Marks):
            return observer
    found.observers.append(Marks())
    return found.observers[-1]
