"""``ampcompat migrate``: rewrite a script for Apex to plain torch.

Requires LibCST, in the extra ``migrate``.
"""

from .parsed_script import Migration
from .script import migrate
from .to_level import write_level

__all__ = ["Migration", "migrate", "write_level"]
