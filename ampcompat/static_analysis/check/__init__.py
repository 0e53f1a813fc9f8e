"""``ampcompat check``: does a code base written for Apex run unchanged? Reads files, imports none of them."""

from .check_report import CheckReport
from .project import check

__all__ = ["CheckReport", "check"]
