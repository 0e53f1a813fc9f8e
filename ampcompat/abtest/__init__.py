"""A/B runs: the opt levels of one training side by side.

Owns: the door: ``compare``, ``Report`` and the records in it.
Must not touch: arguments, terminals and exit codes, which are the desk's.
The surprise: reports can be read and drawn without torch, which only ``compare`` imports.
"""

from .records import Finding, Memory, Report, Run

__all__ = ["Finding", "Memory", "Report", "Run", "compare"]


def __getattr__(name):
    """Import ``compare``, and torch with it, when it is first used."""
    if name != "compare":
        raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
    from .comparison import compare

    return globals().setdefault("compare", compare)
