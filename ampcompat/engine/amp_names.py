"""Apex's other names in ``amp``: ``_amp_state`` and ``lists`` as live views, ``Properties``, and the API before 2019.

Reads and writes of the views go to ``session.process_state`` and the newest session; a view itself keeps only what a
script assigns before there is a session. The views are subclasses of ``ModuleType``, because in Apex ``amp._amp_state``
is a module or the state object in it, depending on the import.

``Properties`` and the level objects ``O0`` … ``O5`` are views of ``opt_levels``: as in Apex a level is called with a
``Properties`` object and writes its defaults into it. ``init`` returns the ``Handle`` of before 2019.
"""

from __future__ import annotations

import types
import warnings
from typing import Union

import torch

from ..errors import AmpError
from ..opt_levels import OPT_LEVELS, level_named, resolve
from ..support.notices import is_first_rank
from .optimizers.optimizer_record import prepared_params
from .session import process_state
from .session.disabled_session import disable
from .session.initialize import check_casts
from .session.process_state import enter
from .session.training_session import Session, new_session

_LIST_NAMES = ("MODULE", "FP16_FUNCS", "FP32_FUNCS", "CASTS", "SEQUENCE_CASTS", "BANNED_FUNCS")


class Properties:
    """The options of a level. Attributes are checked against the level as they are set."""

    def __init__(self):
        object.__setattr__(self, "options", {"enabled": False, "opt_level": None})

    def __getattr__(self, name):
        options = self.__dict__.get("options", {})
        if name in options:
            return options[name]
        raise AttributeError(f"Properties has no option {name!r}")

    def __setattr__(self, name, value):
        if name in self.options and name not in ("enabled", "opt_level") and value is not None:
            _, policy = resolve(self.options["opt_level"], {name: value})
            value = getattr(policy, name)
        self.options[name] = value


class LevelObject:
    """One opt level: ``brief`` describes it, a call fills ``Properties`` with its defaults."""

    def __init__(self, row):
        self._defaults = row
        self.brief = f"{row.opt_level}:  {row.description}"
        self.more = row.description

    def __call__(self, properties):
        """Write the level's defaults into ``properties`` and return them."""
        properties.options.clear()
        properties.options.update(self._defaults.options)
        return properties


opt_levels = {name: LevelObject(row) for name, row in OPT_LEVELS.items()}


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

    Raises:
        AmpError: functions are cast to another dtype already.
    """
    if not enabled:
        disable(0)
        return handle_of(process_state.current())
    session = process_state.current()
    if session is None or not session.enabled:
        session = new_session()
    policy = level_named("O4" if patch_type is torch.bfloat16 else "O1", session.dtypes)
    check_casts(session, policy)
    session.process_casts.allow_banned = session.process_casts.allow_banned or allow_banned
    enter(session)
    try:
        session.process_casts.open(policy.dtypes)
        session.process_casts.dtypes_of_init = policy.dtypes
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


class OptionsView(Properties):
    """The options chosen by ``initialize``, as attributes and as ``options``; read-only."""

    def __init__(self, session):
        policy = session.policy
        options = {} if policy is None else policy._asdict()
        for name in ("description", "dtypes"):
            options.pop(name, None)
        options["enabled"] = session.enabled
        self.__dict__["options"] = options

    def __setattr__(self, name, value):
        raise AmpError(
            f"opt_properties says what initialize decided; it cannot be changed afterwards. Give {name}={value!r} to "
            "amp.initialize instead."
        )


def _state_variable(name, doc):
    """Return a property that reads and writes a variable of ``session.process_state``."""
    return property(
        lambda self: getattr(process_state, name), lambda self, value: setattr(process_state, name, value), doc=doc
    )


def _is_initialized(session):
    """Return whether ``initialize`` was called, or ``initialize(enabled=False)``."""
    return session is not None and not (session.enabled and not session.is_initialized())


def _session_variable(name, show, doc, assign=None, exists=_is_initialized):
    """Return a property that shows something of the current session, and can be assigned if ``assign`` is given.

    Until ``exists`` says that the session has it, it is what a script assigned, or absent.
    """

    def get(self):
        session = process_state.current()
        if exists(session):
            return show(session)
        if name not in vars(self):
            raise AttributeError(f"_amp_state has no {name!r} before amp.initialize")
        return vars(self)[name]

    def set(self, value):
        session = process_state.current()
        if not exists(session):
            vars(self)[name] = value
        elif assign is not None:
            assign(session, value)
        else:
            raise AmpError(f"_amp_state.{name} says what amp.initialize decided; it cannot be changed afterwards.")

    return property(get, set, doc=doc)


class AmpStateModule(types.ModuleType):
    """``apex.amp._amp_state``: the module and the state object in one."""

    @property
    def _amp_state(self):
        return self

    opt_properties = _session_variable("opt_properties", OptionsView, "The options chosen by ``initialize``.")
    loss_scalers = _session_variable(
        "loss_scalers", Session.scalers.fget, "The list of loss scalers.", assign=Session.scalers.fset
    )
    handle = _session_variable(
        "handle", handle_of, "The result of ``amp.init``.", exists=lambda session: session is not None
    )

    @property
    def verbosity(self):
        """The verbosity of the current session."""
        session = process_state.current()
        return 1 if session is None else session.verbosity

    @verbosity.setter
    def verbosity(self, level):
        session = process_state.current()
        if session is not None:  # without a session nothing is printed, and initialize sets its own verbosity
            session.verbosity = level

    allow_incoming_model_not_fp32 = _state_variable(
        "allow_incoming_model_not_fp32", "Whether ``initialize`` accepts models that are half already."
    )
    hard_override = _state_variable("hard_override", "Whether ``warn_or_err`` only warns.")

    def maybe_print(self, msg, rank0=False):
        """Print at verbosity 1 and up; with ``rank0``, in the first process only."""
        if self.verbosity > 0 and (is_first_rank() or not rank0):
            print(msg, flush=True)

    def master_params(self, optimizer):
        """Iterate over the params in ``optimizer.param_groups``, as ``amp.master_params`` does."""
        return prepared_params(optimizer)

    def warn_or_err(self, msg):
        """Raise, or only warn if the script set ``hard_override``."""
        if not self.hard_override:
            raise AmpError(msg)
        warnings.warn(msg, stacklevel=2)


class OpListModule(types.ModuleType):
    """``apex.amp.lists.<name>``: the editable op lists of that name."""

    def _op_lists(self):
        return getattr(process_state.lists, self.__name__.rpartition(".")[2])

    def __getattr__(self, name):
        if name not in _LIST_NAMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._op_lists(), name)

    def __setattr__(self, name, value):
        if name in _LIST_NAMES:
            setattr(self._op_lists(), name, value)
        else:
            super().__setattr__(name, value)

    def __dir__(self):
        return sorted(set(super().__dir__()).union(_LIST_NAMES))


O0, O1, O2, O3, O4, O5 = (opt_levels[name] for name in ("O0", "O1", "O2", "O3", "O4", "O5"))
