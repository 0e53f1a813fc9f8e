"""The session that MMCV's decorators and hooks use.

The first decorated call or hook opens it, and ``ampcompat.reset()`` closes it. In it, functions cast only within
``auto_fp16``; in a session that ``amp.initialize`` opened earlier, they still cast everywhere.
"""

import threading

from .. import opt_levels
from ..engine.session import process_state
from ..engine.session.training_session import new_session

_LOCK = threading.Lock()


def session(opt_level="O1"):
    """Return the current session, which may be disabled; open one at ``opt_level`` if there is none."""
    current = process_state.current()
    return current if current is not None and _is_usable(current) else _open_session(opt_level)


def _is_usable(session):
    return not session.enabled or session.is_initialized() or session.choice is not None


def _open_session(opt_level):
    with _LOCK:  # replicas of a model run in threads, and the first one opens it for all
        current = process_state.current()
        if current is None:
            current = new_session()
            process_state.sessions.append(current)
        resolved = policy(current, opt_level)
        if not _is_usable(current) and resolved.patch_torch_functions:
            current.process_casts.is_regional = True
            current.process_casts.open(resolved.dtypes)
        return current


def policy(session, opt_level="O1"):
    """Return the policy of a session, or the one that ``initialize`` at ``opt_level`` would give it."""
    if session.policy is not None:
        return session.policy
    return opt_levels.resolve(opt_level, command_line=session.overrides, dtypes=session.dtypes)[1]


def dtypes(session):
    """Return the ``DtypePair`` of a session, or None if it computes everything in float32."""
    if not session.enabled:
        return None
    resolved = policy(session)
    return resolved.dtypes if resolved.patch_torch_functions or resolved.casts_model else None
