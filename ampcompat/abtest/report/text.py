"""Renders a report as text for a terminal: one table with the verdicts, one line of advice, and the rest on request."""

import textwrap

from ...support.terminal import aligned
from ..judging.failures import failure, nonfinite_starts
from ..judging.summary import summarize
from ..judging.verdict import ACCEPTED, BASELINE, REJECTED
from ..row_names import are_scripts
from . import tables

#: Columns that are left out, in this order, if the terminal is too narrow for all.
OPTIONAL = ("samples/s", "ms/step", "to target", "peak")

#: The number of causes of skipped steps that are shown; the page and the JSON have all of them.
MAX_CAUSES = 6


def to_text(report, width=100, details=False, summary=None):
    """Return a report as text for a terminal with this number of columns.

    Args:
        details: also include the verdicts in words, scales, memory by kind and why steps were skipped.
        summary: the result of ``summarize(report)``, if known.
    """
    summary = summary or summarize(report)
    overview = tables.levels(report, summary)._replace(title="")
    blocks = [_heading(report, width)]
    blocks.append(_table(overview, width, has_notes=True))
    if details:
        blocks += [_table(each, width) for each in tables.details(report, summary)]
        blocks.append(_sentences(_causes({level: run.findings for level, run in report.runs.items()}), width))
        told = [f"{level}: {run.verdict}" for level, run in report.runs.items() if run.verdict]
    else:
        told = ["{}: {}".format(", ".join(levels), fault) for fault, levels in _faults(report).items()]
        told += _first_causes(report) + _reasons(report, summary)
    blocks.append(_sentences(told + tables.equivalences(report), width))
    blocks.append(_sentences(report.advice.splitlines(), width))
    return "\n\n".join(filter(None, blocks))


def image_heading(report, width=120):
    """Return the text above the charts of an image: the title, and lines with the verdicts and the recommendation.

    ``width``: of a line, in characters.
    """
    title, *rest = tables.heading_parts(report) or ["A/B run"]
    told = [", ".join(rest)] if rest else []
    told += _by_verdict(report) + report.advice.splitlines()[:1]
    return title, _sentences(told, width).splitlines()


def _by_verdict(report):
    """Return one line per verdict: the levels that have it, and why they were rejected or not judged."""
    found = {}
    for level, row in summarize(report).items():
        found.setdefault(_verdict(row), []).append(level)
    return ["{} {}".format(", ".join(levels), verdict) for verdict, levels in found.items()]


def _verdict(row):
    """Return the verdict of a ``LevelSummary``, and why if it is neither accepted nor the baseline."""
    if row.status == "interrupted" and row.verdict.kind != REJECTED:
        return f"interrupted after {row.steps} steps"
    if row.status == "failed":
        return row.verdict.text  # it begins with this word
    return row.kind if row.kind in (ACCEPTED, BASELINE) else f"{row.kind}: {row.verdict.text}"


def _heading(report, width):
    """Return what was run and where, with lines broken only between parts."""
    lines = []
    for part in tables.heading_parts(report):
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += ", " + part
        else:
            lines[-1:] = [each + "," for each in lines[-1:]] + [part]
    return "\n".join(lines)


def _reasons(report, summary):
    """Return why levels were rejected or not judged, and what was judged if that is not one falling loss."""
    explained = sum(_faults(report).values(), [report.baseline])
    found = {}
    for level, row in summary.items():
        is_plain = row.kind == ACCEPTED and row.verdict.progress and len(row.losses) < 2
        if level not in explained and row.kind != "interrupted" and not is_plain and not are_scripts(report):
            found.setdefault(f"{row.kind}: {row.verdict.text}", []).append(level)
    return ["{}: {}".format(", ".join(levels), text) for text, levels in found.items()]


def _faults(report):
    """Return failures of runs that do not depend on the baseline, with the levels that have them."""
    found = {}
    for level, run in report.runs.items():
        fault = failure(run)
        if fault is None and run.error not in (None, run.status):
            fault = f"{run.status}: {run.error}"
        if fault is not None:
            found.setdefault(fault, []).append(level)
    return found


def _first_causes(report):
    """Return why losses are not finite, or steps skipped: the first finding, or the command that finds the layers."""
    starts = {level: _fault_start(run) for level, run in report.runs.items()}
    found = {
        level: [each for each in report.runs[level].findings if each.step >= start][:1]
        for level, start in starts.items()
        if start is not None
    }
    unknown = [level for level, findings in found.items() if not findings and level != report.baseline]
    script = report.environment.get("script")
    if not unknown or not script or are_scripts(report):
        return _causes(found)
    told = f"{', '.join(unknown)}: `ampcompat forecast {script}` finds the layers that must stay float32."
    return _causes(found) + [told]


def _fault_start(run):
    """Return the step from which a loss is not finite, or the first skipped one if the run fails by those, or None."""
    starts = nonfinite_starts(run).values()
    if starts or run.status == "failed" or failure(run) is None:
        return min(starts, default=None)
    return min(run.skipped, default=None)


def _causes(findings):
    first = {level: [each for each in of if each.same_as is None] for level, of in findings.items()}
    causes = [": ".join(each) for each in tables.by_text(first)]
    rest = len(causes) - MAX_CAUSES
    return causes[:MAX_CAUSES] + ([f"{rest} more causes of skipped steps"] if rest > 0 else [])


def _sentences(lines, width):
    wrapped = [textwrap.fill(line, max(40, width), subsequent_indent="    ", break_long_words=False) for line in lines]
    return "\n".join(wrapped)


def _table(table, width, has_notes=False):
    """Return a table with its title above it, in at most ``width`` columns if possible, and its notes below it."""
    optional = list(OPTIONAL)
    lines = aligned([table.columns] + table.rows, table.left)
    while optional and max(map(len, lines)) > width:
        table = tables.without(table, [optional.pop(0)])
        lines = aligned([table.columns] + table.rows, table.left)
    notes = [_sentences([note], width) for _, note in table.notes] if has_notes else []
    return "\n".join(([table.title + ":"] if table.title else []) + lines + notes)
