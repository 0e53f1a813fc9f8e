"""The records of a report: places, uses, findings."""

from typing import NamedTuple, Optional

SUPPORTED, IN_PART, REFUSED = "supported", "in part", "refused"
ERROR, WARNING, NOTE = "error", "warning", "note"


class SourcePlace(NamedTuple):
    """A line of a file; in a notebook, the line of a code cell."""

    path: str
    line: int
    cell: Optional[int] = None

    def __str__(self):
        cell = "" if self.cell is None else f" cell {self.cell}"
        return f"{self.path}{cell}:{self.line}"


class Use(NamedTuple):
    """One use of a name of Apex.

    Attributes:
        place: where.
        name: the full name, such as ``apex.amp.initialize``.
        becomes: ``supported``, ``in part`` or ``refused``.
        advice: what differs, or what to use instead; empty if nothing differs.
        years: when Apex had this API.
        fallback: why a script can continue without it: ``try`` (ImportError is handled), ``function`` (only its callers
            need it), or empty.
    """

    place: SourcePlace
    name: str
    becomes: str
    advice: str
    years: str
    fallback: str = ""


class RequestedLevel(NamedTuple):
    """An opt level that a script requests.

    Attributes:
        place: where.
        level: ``O0`` to ``O5``; ``?`` if it is known only at run time.
        source: where the value comes from, in words.
    """

    place: SourcePlace
    level: str
    source: str


class Problem(NamedTuple):
    """Something that will not work, or not as intended.

    Attributes:
        place: where.
        rule: the rule's name in ``rule_texts.RULES``.
        message: what was found, and what to do.
        severity: ``error``, ``warning`` or ``note``.
    """

    place: SourcePlace
    rule: str
    message: str
    severity: str


class Broken(NamedTuple):
    """A file that could not be read or parsed.

    Attributes:
        place: where.
        reason: why.
        mentions_apex: whether the word apex is in it.
    """

    place: SourcePlace
    reason: str
    mentions_apex: bool
