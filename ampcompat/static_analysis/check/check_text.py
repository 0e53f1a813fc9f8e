"""A report as text, one screen first, then every use."""

import collections

from ..reading.loops_without_apex import LEVELS
from ..rules import IN_PART, REFUSED, SUPPORTED
from .check_report import SEVERITIES

#: The number of scripts and findings on the first screen.
_SCRIPTS, _FINDINGS, _BROKEN = 5, 20, 5


def to_text(report, with_uses=True):
    """Return the report as text.

    Args:
        with_uses: whether every use follows the first screen.
    """
    lines = [report.verdict]
    if report.scripts:
        lines += _section("Command:", list(map(_commands, report.scripts)), _SCRIPTS, "scripts")
    elif report.uses:
        lines += ["", "Command: ampcompat run YOUR_SCRIPT, with a script that imports these files"]
    lines += _forced(report) + _summary(report) + _findings(report) + _broken(report)
    return "\n".join(lines + (_uses(report) if with_uses else [])) + "\n"


def _commands(script):
    return f"  {script.command}" + (f"\n  without a GPU: {script.without_gpu}" if script.without_gpu else "")


def _forced(report):
    """Return the commands for scripts without Apex."""
    title = "Scripts without Apex, and the levels that can be forced on them (torch 2.1 or newer):"
    return _section(title, ["\n".join(_forced_rows(each)) for each in report.forced], _SCRIPTS, "scripts")


def _forced_rows(script):
    trained = f", trained by {script.trainer}" if script.trainer else ""
    levels = ", ".join(script.levels) or "none"
    if len(script.levels) < len(LEVELS):
        levels += " (below is why)"
    lines = [f"  {script.path}: {levels}{trained}"]
    rows = [("at a level", script.command), ("without a GPU", script.without_gpu), ("compare levels", script.compare)]
    rows.append(("write one into it", script.keep))
    return lines + [f"    {what}: {command}" for what, command in rows if command]


def _summary(report):
    counts = collections.Counter(each.becomes for each in report.uses)
    paths = len({each.place.path for each in report.uses})
    uses = ", ".join(f"{counts[key]} {key}" for key in (SUPPORTED, IN_PART, REFUSED) if counts[key])
    lines = [
        "",
        "Uses of Apex: {} in {} of {} files ({})".format(len(report.uses), paths, report.files, uses or "none"),
    ]
    if report.levels:
        names = collections.Counter(each.level for each in report.levels)
        known = ", ".join("{} ({})".format(*row) for row in sorted(names.items()))
        lines.append("Levels: " + known.replace("?", "known only at run time"))
    return lines


def _findings(report):
    rows = [each for severity in SEVERITIES for each in report.of(severity)]
    texts = [f"  {each.place} {each.severity}: {each.message} [{each.rule}]" for each in rows]
    return _section("Found:", texts, _FINDINGS, "findings; --json has all")


def _broken(report):
    texts = [f"  {each.place}: {each.reason}" for each in report.broken]
    return _section("Could not be read or parsed:", texts, _BROKEN, "files; --json has all")


def _uses(report):
    if not report.uses:
        return []
    lines = ["", "Every use:"]
    for use in report.uses:
        advice = "; " + use.advice if use.advice else ""
        lines.append(f"  {use.place} {use.name}: {use.becomes}{advice}")
    for level in report.levels:
        lines.append(f"  {level.place} level {level.level}: {level.source}")
    return lines


def _section(title, texts, most, noun):
    """Return the lines of a section with at most some of its texts; none if there is no text."""
    more = len(texts) - most
    shown = texts if more <= 0 else texts[:most] + [f"  … and {more} more {noun}"]
    return ["", title] + shown if texts else []
