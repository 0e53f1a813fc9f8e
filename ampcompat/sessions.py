"""Functions that Apex does not have: sessions.

Options of a session override the arguments of ``amp.initialize``, like options of the command line.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Optional, Sequence, Union

import torch

from . import opt_levels
from .engine.models import fsdp
from .engine.session import process_state
from .engine.session.disabled_session import DisabledSession
from .engine.session.training_session import Session, new_session
from .errors import AmpError
from .observers.skipped_steps.diagnosis import add_diagnosis
from .observers.step_statistics.added_observers import add_observers
from .support.observer_interface import Observer
from .support.patching import run_after

__all__ = ["current", "fsdp_policy", "reset", "session"]


@contextmanager
def session(
    opt_level: Optional[str] = None,
    backend: Optional[str] = None,
    dtypes: Optional[opt_levels.DtypePair] = None,
    verbosity: Optional[int] = None,
    allow_banned: bool = False,
    observers: Sequence[Observer] = (),
    diagnose: bool = False,
    store_param_remainders: bool = False,
    op_stats: bool = False,
    op_stats_file: Optional[str] = None,
    stats_every: Optional[int] = None,
    stats_file: Optional[str] = None,
    **options: Any,
) -> Iterator[Session]:
    """Return a context manager in which mixed precision is active; everything is restored on exit.

    Every ``amp.initialize`` in the block belongs to this session. On exit, torch's functions, autocast flags,
    ``forward`` and the optimizers' methods are restored; half weights become float32 again, with the values of their
    master weights.

    Args:
        opt_level: "O0" … "O5", overrides the argument of ``amp.initialize`` unless None.
        backend: the cast backend at O1 and O4: "auto", "native" or "patched".
        dtypes: an ``opt_levels.DtypePair`` (low, high) instead of the level's own.
        verbosity: 0 prints nothing; overrides the argument of ``amp.initialize`` unless None.
        allow_banned: compute functions that are unsafe in half precision in float32 instead of raising an error.
        observers: ``observer_interface.Observer`` objects whose callbacks are called.
        diagnose: print why steps are skipped, as ``amp.initialize(diagnose=True)`` does.
        store_param_remainders: as in ``amp.initialize``, for every call.
        op_stats: print at the end how often each function of torch ran in which dtype, and why.
        op_stats_file: write these counts to a JSON file.
        stats_every: measure activations, gradients and weights in the optimizer steps 0, n, 2n, …
        stats_file: the CSV file that these statistics are written to.
        **options: any option of ``amp.initialize`` that an opt level sets, such as ``loss_scale=128.0``.

    Yields:
        The ``engine.session.training_session.Session``.

    Raises:
        AmpError: a session is open already, the level is unknown, or an option is invalid for the level; or statistics
            need a newer torch.
    """
    if process_state.current() is not None:
        raise AmpError("A session is open already. Leave its block, or call ampcompat.reset(), before opening another.")
    overrides = {name: value for name, value in dict(options, opt_level=opt_level).items() if value is not None}
    opt_levels.resolve(opt_level or "O1", command_line=overrides)
    if store_param_remainders:
        overrides["store_param_remainders"] = True
    opened = new_session(backend, dtypes, verbosity, allow_banned, overrides, observers)
    stated = {
        "op_stats": op_stats,
        "op_stats_file": op_stats_file,
        "stats_every": stats_every,
        "stats_file": stats_file,
    }
    add_observers(opened, **{**stated, **process_state.observed()})
    if diagnose:
        add_diagnosis(opened)
    process_state.sessions.append(opened)
    try:
        yield opened
    except BaseException as error:
        run_after(error, opened.close)
        raise
    opened.close()


def current() -> Optional[Union[Session, DisabledSession]]:
    """Return the newest open session, or None."""
    return process_state.current()


def reset() -> None:
    """Close every open session: torch, models and optimizers are restored to their state before ``amp.initialize``.

    If closing one of them raises an error, the others are still closed. Functions that were registered with
    ``amp.register_*_function`` stay registered for the next ``initialize``.
    """
    process_state.close_all()


def fsdp_policy(opt_level: str = "O1", reduce_dtype: Optional[torch.dtype] = None, **options: Any) -> Any:
    """Return an ``mp_policy`` for ``fully_shard`` that computes like an opt level.

    At O2, O3 and O5 weights are gathered in half, and gradients are reduced in float32. At the other levels, it is
    torch's default. ``amp.initialize`` sets the same policy on modules that were sharded without ``mp_policy``.

    Args:
        opt_level: "O0" … "O5"; overridden by the session and the command line, as in ``amp.initialize``.
        reduce_dtype: the dtype in which gradients are reduced instead; half precision sends half as many bytes and may
            overflow.
        **options: those of ``amp.initialize`` that an opt level sets, such as ``cast_model_type``.

    Returns:
        A ``torch.distributed.fsdp.MixedPrecisionPolicy``.

    Raises:
        AmpError: the level is unknown, or an option is invalid for the level.
        ImportError: this torch has no ``fully_shard``.
    """
    opened = current()
    if opened is None or not opened.enabled:
        overrides, dtypes = {"opt_level": process_state.command_line().get("opt_level")}, None
    else:
        overrides, dtypes = opened.overrides, opened.dtypes
    _, policy = opt_levels.resolve(opt_level, options, overrides, dtypes)
    return fsdp.policy_of(policy, reduce_dtype)
