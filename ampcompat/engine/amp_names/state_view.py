"""Live views of the module state that users of Apex access: ``apex.amp._amp_state`` and ``apex.amp.lists``.

Reads and writes go to ``session.process_state`` and the newest session; a view itself keeps only what a script
assigns before there is a session. The views are subclasses of ``ModuleType``, because in Apex ``amp._amp_state`` is a
module or the state object in it, depending on the import.
"""

import types
import warnings

from ...errors import AmpError
from ...support.notices import is_first_rank
from ..patched_optimizers.master_params import prepared_params
from ..session import process_state
from ..session.training_session import Session
from .old_api import handle_of
from .properties import Properties

_LIST_NAMES = ("MODULE", "FP16_FUNCS", "FP32_FUNCS", "CASTS", "SEQUENCE_CASTS", "BANNED_FUNCS")


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
