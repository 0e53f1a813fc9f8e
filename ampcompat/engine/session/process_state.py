"""The state of the process: open sessions, observers, registrations, op lists, overrides of the command line.

All threads share it. The overrides of the command line are environment variables, so that spawned workers get them too.
"""

import atexit
import os
import threading

from ...errors import AmpError
from ...support.child_environment import ChildEnvironment
from ...support.patching import run_all

#: Held by ``amp.initialize``: threads initialize one after the other.
changing = threading.RLock()

#: Open sessions, newest last. ``amp`` uses the newest.
sessions = []

#: ``Observer`` objects that every new session gets, set by recorded runs.
observers = []

#: Keyword arguments of ``amp.initialize`` that replace those of the script, while a run of ``ab`` tries them. Layers of
#: ``keep_fp32`` are added to the script's.
initialize_options = {}

#: Functions without arguments that ``amp.initialize`` calls first: what ``run --opt-level`` does to scripts that never
#: call it ends there.
before_initialize = []

#: What users registered with ``amp.register_*_function``: (owner object, name, rule).
registrations = []

#: Set by scripts through ``_amp_state``: skip the check for half models; warn where an option is refused.
allow_incoming_model_not_fp32 = False
hard_override = False

#: Fields of ``ChildEnvironment``: arguments of ``amp.initialize``, and what ``run`` observes of a script beside
#: ``diagnose``.
OVERRIDES = ("opt_level", "backend", "verbosity", "dtypes", "diagnose", "store_param_remainders", "keep_fp32")
OBSERVED = ("op_stats", "op_stats_file", "stats_every", "stats_file")


def __getattr__(name):
    """Make ``lists``, the editable op lists, on first access: they import torch, the command line does not."""
    if name != "lists":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..op_table.expansion import OverrideLists

    return globals().setdefault("lists", OverrideLists())


def current():
    """Return the newest open session, or None."""
    return sessions[-1] if sessions else None


def initialized_session(caller):
    """Return the current session.

    Args:
        caller: the name of the public function that asks, for the message of the error.

    Raises:
        AmpError: ``amp.initialize`` was not called.
    """
    session = sessions[-1] if sessions else None
    if session is None or (session.enabled and not session.is_initialized()):
        raise not_initialized(caller)
    return session


def not_initialized(caller):
    """Return the ``AmpError`` that the public function ``caller`` was called before ``amp.initialize``."""
    return AmpError(
        f"{caller} was called before amp.initialize. Call model, optimizer = amp.initialize(model, optimizer, "
        "opt_level=...) first."
    )


def enter(session):
    """Make ``session`` the current one; close a disabled one before it."""
    earlier = current()
    if earlier is not session:
        if earlier is not None:
            earlier.close()
        sessions.append(session)


def leave(session):
    """Remove a session from the list of open ones."""
    if session in sessions:
        sessions.remove(session)


def close_all():
    """Close every open session, newest first, even if one raises; raise the first error at the end."""
    run_all([(session.close, ()) for session in reversed(sessions)])


@atexit.register
def _sync_all():
    run_all((_sync_at_exit, (scaler,)) for session in list(sessions) for scaler in session.all_scalers())


def _sync_at_exit(scaler):
    try:
        scaler.sync()
    except AmpError:
        raise  # an error of this package, which nothing else reports
    except RuntimeError:
        pass  # the device has failed, and that error is reported already


def command_line():
    """Return the overrides of ``ampcompat run`` as a dict; empty without it."""
    return _told(OVERRIDES)


def observed():
    """Return which statistics ``ampcompat run`` was asked for, as a dict; empty without any."""
    return _told(OBSERVED)


def _told(names):
    told = vars(ChildEnvironment.from_env())
    return {name: told[name] for name in names if told[name] is not None}


def set_command_line(**overrides):
    """Override arguments of ``amp.initialize`` in this process and its children; None removes an override."""
    removed = ChildEnvironment(**{name: "1" for name, value in overrides.items() if value is None}).to_env()
    for variable in removed:
        os.environ.pop(variable, None)
    os.environ.update(ChildEnvironment(**overrides).to_env())
