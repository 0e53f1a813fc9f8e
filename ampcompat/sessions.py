"""Sessions: what Apex never had. Open one for a block, ask for the current one, put everything back.

Owns: ``session``, ``current``, ``reset``.
Must not touch: torch; sessions do.
The surprise: a session's options win over what the script's own ``amp.initialize`` asks for, just as the command line's do.
"""

from contextlib import contextmanager

from .errors import AmpError
from .runtime import state
from .runtime.forensics import diagnosing
from .runtime.session import new_session
from .runtime.state import current
from .tables import opt_levels

__all__ = ["current", "reset", "session"]


@contextmanager
def session(
    opt_level=None,
    backend=None,
    dtypes=None,
    verbosity=None,
    allow_banned=False,
    observers=(),
    diagnose=False,
    **options
):
    """Open a session for a block, and leave torch, models and optimizers as plain float32 ones afterwards.

    Every ``amp.initialize`` in the block belongs to it. At the end torch's functions, autocast flags, ``forward`` and the
    optimizers' methods are as they were before; weights that were half are float32 again, with their masters' values.

    Args:
        opt_level: "O0" … "O5", whatever the script asks for; None leaves it to the script.
        backend: who casts at O1 and O4: "auto", "native" or "patched".
        dtypes: a ``tables.opt_levels.DtypePair`` (low, high) instead of the level's own.
        verbosity: 0 for silence; None leaves it to the script.
        allow_banned: functions that are unsafe in half run in float32 instead of raising.
        observers: ``runtime.observers.Observer`` objects that hear what happens.
        diagnose: say why steps are skipped, as ``amp.initialize(diagnose=True)`` does.
        **options: any option of ``amp.initialize`` that an opt level sets, such as ``loss_scale=128.0``.

    Yields:
        The ``runtime.session.Session``.

    Raises:
        AmpError: a session is open already; an unknown level; an option that makes no sense for the level.
    """
    if state.current() is not None:
        raise AmpError("A session is open already. Leave its block, or call ampcompat.reset(), before opening another.")
    overrides = {name: value for name, value in dict(options, opt_level=opt_level).items() if value is not None}
    opt_levels.resolve(opt_level or "O1", command_line=overrides)
    opened = new_session(backend, dtypes, verbosity, allow_banned, overrides, diagnosing(observers, diagnose))
    state.sessions.append(opened)
    try:
        yield opened
    finally:
        opened.close()


def reset():
    """Close every open session: everything is as if ``amp`` had never been initialized.

    Functions that were registered with ``amp.register_*_function`` stay registered for the next ``initialize``.
    """
    while state.sessions:
        state.sessions[-1].close()
