"""ampcompat: NVIDIA Apex's mixed-precision API on any PyTorch. So far it has been tested on CPUs only.

Importing it changes nothing and does not import torch; torch is imported when one of the names below is first used.
``docs/architecture.md`` describes the packages.
"""

from __future__ import annotations

import importlib

__version__ = "0.2.0"

__all__ = ["amp", "audit", "current", "estimate", "fsdp_policy", "memory_report", "reset"]
__all__ += ["session"]

#: True for type checkers, which then see the imports that ``__getattr__`` makes. Importing ``typing`` would take longer
#: than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import amp
    from .diagnostics.audit.audit import audit
    from .diagnostics.estimate.memory_report_and_estimate import estimate, memory_report
    from .sessions import current, fsdp_policy, reset, session

_MODULES = {
    "amp": None,
    "session": "sessions",
    "current": "sessions",
    "reset": "sessions",
    "fsdp_policy": "sessions",
    "audit": "diagnostics.audit.audit",
    "memory_report": "diagnostics.estimate.memory_report_and_estimate",
    "estimate": "diagnostics.estimate.memory_report_and_estimate",
}

if not TYPE_CHECKING:  # type checkers know all names, and report others

    def __getattr__(name: str) -> object:
        """Import the module of a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module("." + (_MODULES[name] or name), __name__)
        found = module if _MODULES[name] is None else getattr(module, name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__ + ["__version__"])


def load_ipython_extension(shell):
    """``%load_ext ampcompat``: make ``import apex`` import ampcompat; ``%unload_ext ampcompat`` undoes it."""
    from .as_apex import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell):
    """``%unload_ext ampcompat``."""
    from .as_apex import undo

    undo()
