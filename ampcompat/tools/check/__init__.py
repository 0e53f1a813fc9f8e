"""``python -m ampcompat check``: does a code base written for Apex run unchanged? Reads files, imports none of them."""

from .project import check
from .report import CheckReport

__all__ = ["CheckReport", "check"]
