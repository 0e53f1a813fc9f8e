"""Migrate one script: from its source to new source, notes, and uses that are left."""

from ...errors import AmpError
from .block_rewriting import Rewriter
from .branches import MARK
from .call_rewriting import BY_HAND
from .global_variables import make_global, place_device
from .imports_and_marks import AS_IS, add_header, mark_rest, prune_imports
from .parsed_script import Migration, rewritten
from .script_facts import ScriptFacts


def migrate(source, path="script.py"):
    """Rewrite a script for Apex to plain torch (2.3 or later).

    A script that does not use Apex is returned unchanged, and so is one with marks of an earlier run, which are
    returned as left.

    Args:
        source: the script's source.
        path: its name, for messages.

    Raises:
        AmpError: it is not Python 3, or uses Apex but does not call ``amp.initialize``.
    """
    return rewritten(source, path, _migrate)


def _migrate(script):
    source, split, path = script.source, script.split, script.path
    facts = ScriptFacts(split, path)
    marks = list(_marks(source))
    if marks or not facts.uses_apex:
        return Migration(source, [], marks)
    if not facts.initializes:
        raise AmpError(
            f"{path} does not call amp.initialize. migrate rewrites scripts that do, in one file; `ampcompat check` "
            "finds them."
        )
    rewriter, names = Rewriter(facts), facts.names
    text = prune_imports(rewriter.rewrite(split).code)
    variables = (names.scaler, names.flag, names.dtype)
    text, has_device = place_device(text, names.device)
    text, declared, shared = make_global(text, variables + (names.device,))
    text = add_header(text, names, rewriter.loads_state, has_device, shared)
    text, marked = mark_rest(script.joined(text))
    was = script.old_lines
    left = [(was[line], reason) for line, reason in rewriter.left]
    left += [(0, _left(name, lines)) for name, lines in marked.items()]
    notes = [(was[line], note) for line, note in rewriter.notes] + [(0, note) for note in declared]
    return Migration(text, sorted(notes), sorted(left))


def _marks(source):
    """Yield (line, text) of the comments of an earlier run that say what is left."""
    for at, line in enumerate(source.split("\n"), 1):
        if line.strip().startswith(MARK):
            text = line.strip()[len(MARK) :]
            yield at, text[len(AS_IS) :] if text.startswith(AS_IS) else text


def _left(name, lines):
    """Return the message for a name of Apex that the new script still has, given its lines."""
    shown = " and ".join(", ".join(map(str, lines)).rsplit(", ", 1))
    where = "{}, in line{} {} of the new script".format(name, "" if len(lines) == 1 else "s", shown)
    return f"{where}: {BY_HAND[name]}" if name in BY_HAND else where
