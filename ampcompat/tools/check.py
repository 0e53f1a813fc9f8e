"""The public name of ``check``, for programs; ``scripts/check/`` has it."""

from ..scripts.check import CheckReport, check

__all__ = ["CheckReport", "check"]
