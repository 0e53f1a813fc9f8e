"""Sessions: what Apex never had. Open one for a block, ask for the current one, put everything back.

Owns: ``session``, ``current``, ``reset``, ``gradient_histogram``.
Must not touch: torch; sessions do.
The surprise: a session's options win over what the script's own ``amp.initialize`` asks for, just as the command line's
do.
"""

from contextlib import contextmanager

from .errors import AmpError, AmpTypeError
from .parts.exponents import Counts
from .runtime import state
from .runtime.forensics import Forensics, diagnosing
from .runtime.session import new_session
from .runtime.state import current
from .tables import opt_levels

__all__ = ["current", "gradient_histogram", "reset", "session"]


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

    Every ``amp.initialize`` in the block belongs to it. At the end torch's functions, autocast flags, ``forward`` and
    the optimizers' methods are as they were before; weights that were half are float32 again, with their masters'
    values.

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


def gradient_histogram(source=None):
    """Count gradients by powers of two, to see whether training in half needs a loss scale.

    Args:
        source: a model, an optimizer, or a list of them: their gradients of now, in true units, every value. Call it
        between
            the end of ``scale_loss`` and ``optimizer.step()``. None: what ``diagnose`` has counted since
            ``amp.initialize``, a sample of every tenth pass.

    Returns:
        A ``parts.exponents.Histogram``: ``table()`` and ``verdict()`` are text; ``lost()`` is the share of nonzero
        values under 2**-24, which plain float16 makes 0, ``subnormal()`` the share that it keeps with fewer bits,
        ``overflowing()`` the share over 65504; ``keeping_scale()`` and ``fitting_scale()`` are the loss scales between
        which nothing is lost.

    Raises:
        AmpTypeError: something else was given.
        AmpError: there are no gradients, or they are still scaled, or nothing was counted.
    """
    if source is None:
        return _counted().histogram()
    gradients = []
    for each in source if isinstance(source, (list, tuple)) else [source]:
        gradients += [gradient for gradient in _gradients_of(each) if gradient is not None]
    if not gradients:
        raise AmpError(
            "gradient_histogram found no gradients. Call it after the scale_loss block and before optimizer.step(), "
            "which frees those of masters, or optimizer.zero_grad()."
        )
    counts = Counts()
    counts.take_in(gradients)
    return counts.read()


def _counted():
    opened = current()
    for observer in opened.observers if opened is not None and opened.enabled else ():
        if isinstance(observer, Forensics):
            return observer
    raise AmpError(
        "gradient_histogram() without a model or optimizer asks for what diagnose has counted: call "
        "amp.initialize(..., diagnose=True) first, or pass the model or the optimizer."
    )


def _gradients_of(source):
    """Return the gradients of a model (of its masters where there are some) or an optimizer; None among them."""
    if hasattr(source, "param_groups"):
        adapter = getattr(source, "_amp_stash", None)
        if adapter is not None and adapter.holds_scaled_gradients():
            raise AmpError(
                "gradient_histogram got an optimizer whose gradients are still scaled, since the last amp.scale_loss "
                "had delay_unscale=True. Call it after the pass that unscales them."
            )
        return [param.grad for group in source.param_groups for param in group["params"]]
    if not hasattr(source, "parameters"):
        raise AmpTypeError(
            "gradient_histogram expected a model, an optimizer or a list of them, not {}.".format(type(source).__name__)
        )
    masters = getattr(current(), "masters", None)
    found = []
    for param in source.parameters():
        master = None if masters is None else masters.find(param)
        found.append(param.grad if master is None else master.grad)
    return found
