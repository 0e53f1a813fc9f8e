"""``ampcompat migrate``: rewrite a script for Apex to plain torch.

Requires LibCST, in the extra ``migrate``.
"""

from .from_apex import migrate
from .parsed_script import Migration
from .to_level import write_level

__all__ = ["Migration", "migrate", "write_level"]
