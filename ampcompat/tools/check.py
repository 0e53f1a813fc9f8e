"""``ampcompat.tools.check.check``: the command ``check`` as a function; ``scripts/check/`` has it."""

from ..scripts.check import CheckReport, check

__all__ = ["CheckReport", "check"]
