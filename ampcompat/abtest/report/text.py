"""Renders a report as text for a terminal: one table with the verdicts, one line of advice, and the rest on request."""

import textwrap

from .. import keep_fp32
from ..number_format import UNKNOWN, number, percent, scale, size
from ..report_data import KINDS
from ..summary import summarize

TITLES = ["level", "verdict", "loss ends at", "difference", "ms/step", "speed", "samples/s", "peak", "skips"]


def to_text(report, width=100, details=False):
    """Return a report as text for a terminal of so many columns.

    Args:
        details: also the verdicts in words, scales, memory by kind and why steps were skipped.
    """
    parts = [filter(None, [heading(report)]), _aligned(TITLES, summary_cells(report))]
    parts += [_aligned(*table) for table in layer_tables(report)]
    if details:
        parts += [_aligned(*table) for table in detail_tables(report)]
        parts += [_findings(report.runs.items(), width), _verdicts(report, width)]
    elif any(run.error for run in report.runs.values()):
        failed = ["{}: {}: {}".format(level, run.status, run.error) for level, run in report.runs.items() if run.error]
        parts.append([line for each in failed for line in _wrapped(each, width)])
    advice = report.advice.splitlines()
    shown = advice if details else advice[:1]
    parts.append([line for each in shown for line in _wrapped(each, width)])
    return "\n\n".join(filter(None, map("\n".join, parts)))


def heading(report):
    """Return in one line what was run, and where."""
    values = report.environment
    words = [str(values[name]) for name in ("script", "device") if values.get(name)]
    named = [name for name in ("torch", "dtypes", "seed") if values.get(name) is not None]
    words += ["{} {}".format(name, values[name]) for name in named]
    return ", ".join(words)


def summary_cells(report):
    """Return the rows of the table of levels, one list of cells per level."""
    return [_cells(row, report.runs[level]) for level, row in summarize(report).items()]


def _cells(row, run):
    unfinished = run.status in ("failed", "interrupted")
    return [
        row.level,
        run.status if unfinished else row.verdict.kind,
        number(row.end) + (" \u00b1 {:.2g}".format(row.spread) if row.spread is not None else ""),
        signed_percent(row.verdict.difference),
        milliseconds(row.seconds),
        "\u00d7 {:.2f}".format(row.speed) if row.speed else UNKNOWN,
        "{:.0f}".format(row.rate) if row.rate else UNKNOWN,
        size(row.peak),
        "{}/{}".format(row.skipped, row.steps),
    ]


def signed_percent(share):
    """Return a difference as a signed share."""
    return UNKNOWN if share is None else ("+" if share > 0 else "\u2212" if share < 0 else "") + percent(abs(share))


def milliseconds(seconds):
    """Return seconds in milliseconds, with three digits."""
    if seconds is None:
        return UNKNOWN
    return "{:.3g}".format(seconds * 1e3) if seconds < 1 else "{:.0f}".format(seconds * 1e3)


def detail_tables(report):
    """Return further tables as ``[(titles, rows of cells)]``, levels in the first column."""
    tables = [(["level", "seeds", "scale last", "lowest", "backend"], [])]
    for level, run in report.runs.items():
        scales = [value for _, _, value in run.scale]
        ends = [scale(scales[-1] if scales else None), scale(min(scales, default=None))]
        tables[0][1].append([level, str(1 + len(run.repeats))] + ends + [run.backend or UNKNOWN])
    return tables + _memory(report.runs)


#: Layers and params that are shown, those with the largest errors.
SHOWN_LAYERS = 8


def layer_tables(report):
    """Return a table for each level whose layers were compared: those with the largest errors, and their share."""
    tables = []
    for level, run in report.runs.items():
        rows = [[name, percent(error), percent(share)] for name, error, share in keep_fp32.ranking(run)]
        if rows and level != report.baseline:
            tables.append((["layer at " + level, "", "error", "share"], [row[:1] + [""] + row[1:] for row in rows]))
            gradients = sorted(run.gradients, key=lambda item: -item[1])
            cells = [[name, "", percent(error)] for name, error in gradients[:SHOWN_LAYERS]]
            tables[-1] = (tables[-1][0], tables[-1][1][:SHOWN_LAYERS])
            tables += [(["gradient at " + level, "", "error"], cells)] if cells else []
    return tables


def _memory(runs):
    if all(run.memory.peak_total is None for run in runs.values()):
        return []
    names = list(KINDS) + ["peak_total"]
    if any(run.memory.cuda_allocated is not None for run in runs.values()):
        names += ["cuda_allocated", "cuda_reserved"]
    titles = ["memory"] + [_SHORT.get(name, name) for name in names]
    return [(titles, [[level] + [size(getattr(run.memory, name)) for name in names] for level, run in runs.items()])]


_SHORT = {
    "parameters": "params",
    "gradients": "grads",
    "peak_total": "peak",
    "cuda_allocated": "CUDA",
    "cuda_reserved": "reserved",
}

#: Findings that are shown for one level; the HTML page and the JSON have all of them.
MAX_FINDINGS = 3

#: How the overflow diagnosis begins a finding whose cause it has reported before.
SAME_CAUSE = "As in step "


def _findings(rows, width):
    shown, rest = {}, []  # (step, text) -> levels
    for level, run in rows:
        selected = _first_and_last(run.findings)
        for finding in selected:
            shown.setdefault((finding.step, finding.text), []).append(level)
        if len(run.findings) > len(selected):
            rest.append("{} at {}".format(len(run.findings) - len(selected), level))
    if not shown:
        return []
    lines = ["overflows:"]
    for (step, text), levels in sorted(shown.items(), key=lambda item: item[0][0]):
        lines += _wrapped("step {}, {}: {}".format(step, " ".join(levels), text), width)
    return lines + (_wrapped("more, most of them similar: {}".format(", ".join(rest)), width) if rest else [])


def _first_and_last(findings):
    """Return the first finding and the last ones, without those that repeat a cause."""
    new = [finding for finding in findings if not finding.text.startswith(SAME_CAUSE)]
    return new if len(new) <= MAX_FINDINGS else new[:1] + new[1 - MAX_FINDINGS :]


def _verdicts(report, width):
    lines = []
    for level, run in report.runs.items():
        lines += _wrapped("{}: {}".format(level, run.verdict), width) if run.verdict else []
    return lines


def _wrapped(text, width):
    return textwrap.wrap(text, max(40, width), subsequent_indent="    ", break_long_words=False)


def _aligned(titles, rows):
    """Return lines in columns: the first two columns aligned to the left, the others to the right."""
    widths = [max(len(row[index]) for row in [titles] + rows) for index in range(len(titles))]
    lines = []
    for row in [titles] + rows:
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
