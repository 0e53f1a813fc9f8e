"""Migrate one script: from its source to new source, notes, and what is left."""

from typing import List, NamedTuple, Tuple

import libcst as cst
from libcst.metadata import MetadataWrapper

from ..errors import AmpError
from .layout import OneStatementPerLine, add_header, mark_rest, prune_imports
from .plan import Plan
from .rewrite import Rewriter


class Migration(NamedTuple):
    """The result.

    Attributes:
        source: the new source.
        notes: (line in the old source, what changes).
        left: (line in the old source or 0, what could not be rewritten); marked with comments in the new source.
    """

    source: str
    notes: List[Tuple[int, str]]
    left: List[Tuple[int, str]]


def migrate(source, path="script.py"):
    """Rewrite a script for Apex into plain torch (2.3 or later).

    Args:
        source: the script's source.
        path: its name, for messages.

    Raises:
        AmpError: it is not Python 3, or does not call ``amp.initialize``.
    """
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise AmpError("{} is not Python 3: {}.".format(path, str(error).splitlines()[0])) from None
    split = module.visit(OneStatementPerLine()).code
    plan = Plan(split, path)
    if not plan.initializes:
        raise AmpError(
            "{} does not call amp.initialize. migrate rewrites scripts that do, in one file; `ampcompat check` finds "
            "them.".format(path)
        )
    rewriter = Rewriter(plan)
    wrapper = MetadataWrapper(cst.parse_module(split))
    new = wrapper.visit(rewriter)
    text = add_header(prune_imports(new.code), plan.names, rewriter.loads_state)
    text, names = mark_rest(text)
    left = rewriter.left + [(0, name + ", marked in the new script") for name in names]
    return Migration(text, sorted(rewriter.notes), sorted(left))
