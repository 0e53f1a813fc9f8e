"""What is open now: the only mutable module-level values of the package.

Owns: the open sessions, who listens to new ones, the user's registrations, the editable op lists, the command line's overrides.
Must not touch: torch's namespaces. Sessions change torch, and they put it back themselves.
The surprise: this is process-wide on purpose. Worker threads must see the same answer as the main thread, and the
command line's overrides live in the environment, so that spawned workers see them too.
"""

import atexit
import os

#: Open sessions, newest last. ``amp`` talks to the newest.
sessions = []

#: ``Observer`` objects that every new session gets, as a recorded run wants it.
observers = []

#: Rows that users registered with ``amp.register_*_function``: (owner object, name, rule).
registrations = []

#: Set by scripts through ``_amp_state``: skip the check for half models; warn where an option is refused.
allow_incoming_model_not_fp32 = False
hard_override = False

_VARIABLES = {
    "opt_level": "AMPCOMPAT_OPT_LEVEL",
    "backend": "AMPCOMPAT_BACKEND",
    "verbosity": "AMPCOMPAT_VERBOSITY",
    "dtypes": "AMPCOMPAT_DTYPES",  # "float32,float64": the stand-in pair, for torch without half arithmetic
    "diagnose": "AMPCOMPAT_DIAGNOSE",  # 1
}


def __getattr__(name):
    """Make ``lists``, the editable op lists, when somebody first asks: they need torch, the command line does not."""
    if name != "lists":
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
    from .op_lists import OverrideLists

    return globals().setdefault("lists", OverrideLists())


def current():
    """Return the newest open session, or None."""
    return sessions[-1] if sessions else None


def settle(session):
    """Let a session say what only a device knows so far: overflows whose steps were skipped there."""
    for scaler in session.scalers:
        scaler.settle()


@atexit.register
def _settle_all():
    try:
        for session in list(sessions):
            settle(session)
    except RuntimeError:
        pass  # a device that has failed answers nothing any more; what it failed of is being said already


def command_line():
    """Return the overrides of ``python -m ampcompat run`` as a dict; empty without it."""
    found = {name: os.environ[variable] for name, variable in _VARIABLES.items() if variable in os.environ}
    if "verbosity" in found:
        found["verbosity"] = int(found["verbosity"])
    if "diagnose" in found:
        found["diagnose"] = found["diagnose"] not in ("", "0")
    return found


def set_command_line(**overrides):
    """Override what scripts ask for, in this process and its children; None takes an override back."""
    for name, value in overrides.items():
        variable = _VARIABLES[name]
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = str(value)
