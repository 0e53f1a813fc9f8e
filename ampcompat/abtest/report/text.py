"""Renders a report as text for a terminal.

There are three narrow tables instead of one wide one (losses; scale and speed; memory), so that 80 columns are enough.
"""

import textwrap

from .. import recommendation
from ..number_format import UNKNOWN, number, percent, scale, size
from ..report_data import KINDS

_STATUS = {"ok": "", "stopped": "", "failed": "failed", "interrupted": "interrupted"}


def to_text(report, width=100):
    """Return a report as text for a terminal of so many columns."""
    parts = [filter(None, [heading(report)])]
    parts += [_aligned(titles, rows) for _, titles, rows in tables(report)]
    parts += [_findings(report.runs.items(), width), _verdicts(report, width)]
    return "\n\n".join(filter(None, map("\n".join, parts)))


def heading(report):
    """Return in one line what was run, and where."""
    values = report.environment
    words = [str(values[name]) for name in ("script", "device") if values.get(name)]
    named = [name for name in ("torch", "dtypes", "seed") if values.get(name) is not None]
    words += ["{} {}".format(name, values[name]) for name in named]
    return ", ".join(words)


def tables(report):
    """Return the tables as ``[(name, titles, rows of cells)]``, levels in the first column."""
    assessments = recommendation.assess(report)
    rows = [(level, run, assessments[level]) for level, run in report.runs.items()]
    found = [("losses",) + _losses(rows, report), ("scale and speed",) + _speed(rows), ("memory",) + _memory(rows)]
    return [table for table in found if table[2]]


def _losses(rows, report):
    baseline = report.runs.get(report.baseline)
    titles = ["level", "steps", "first loss", "last", "mean", "divergence max", "mean"]
    titles += ["beyond noise"] if baseline is not None and baseline.repeats else []
    lines = []
    for level, run, result in rows:
        values = [value for _, value in sorted(_total_losses(run).items())]
        cells = [level, str(result.steps)] + [number(value) for value in _first_last_mean(values)]
        cells += [percent(result.largest), percent(result.mean), percent(result.beyond)]
        lines.append(cells[: len(titles)] + [_STATUS[run.status]])
    return titles + [""], lines


def _total_losses(run):
    """Return ``{step: loss}``; the sum, where a step has several losses."""
    totals = {}
    for loss_id in {number for _, number, _ in run.loss}:
        for step, value in run.losses(loss_id).items():
            totals[step] = totals.get(step, 0.0) + value
    return totals


def _first_last_mean(values):
    """Return (first, last, mean) of losses."""
    if not values:
        return (None, None, None)
    return values[0], values[-1], sum(values) / len(values)


def _speed(rows):
    titles = ["level", "skipped", "scale last", "lowest", "ms/step", "x baseline", "samples/s", "backend"]
    lines = []
    for level, run, result in rows:
        scales = [value for _, _, value in run.scale]
        cells = [level, str(len(run.skipped)), scale(scales[-1] if scales else None), scale(min(scales, default=None))]
        cells += [_milliseconds(result.seconds), "{:.2f}".format(result.ratio) if result.ratio else UNKNOWN]
        cells += [_rate(run), run.backend or UNKNOWN]
        lines.append(cells)
    return titles, lines


def _milliseconds(seconds):
    if seconds is None:
        return UNKNOWN
    return "{:.3g}".format(seconds * 1e3) if seconds < 1 else "{:.0f}".format(seconds * 1e3)


def _rate(run):
    steps = recommendation.steady_steps(run)
    seconds = sum(run.step_seconds[step] for step in steps)
    if run.samples is None or not seconds:
        return UNKNOWN
    return "{:.0f}".format(sum(run.samples[step] for step in steps) / seconds)


def _memory(rows):
    if all(run.memory.peak_total is None for _, run, _ in rows):
        return [], []
    names = list(KINDS) + ["peak_total"]
    if any(run.memory.cuda_allocated is not None for _, run, _ in rows):
        names += ["cuda_allocated", "cuda_reserved"]
    titles = ["memory"] + [_SHORT.get(name, name) for name in names]
    return titles, [[level] + [size(getattr(run.memory, name)) for name in names] for level, run, _ in rows]


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
    for line in report.advice.splitlines():
        lines += _wrapped(line, width)
    return lines


def _wrapped(text, width):
    return textwrap.wrap(text, max(40, width), subsequent_indent="    ", break_long_words=False)


def _aligned(titles, rows):
    """Return lines in columns: the first and the last column aligned to the left, the others to the right."""
    widths = [max(len(row[index]) for row in [titles] + rows) for index in range(len(titles))]
    lines = []
    for row in [titles] + rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths)]
        cells[0] = row[0].ljust(widths[0])
        cells[-1] = row[-1]
        lines.append("  ".join(cells).rstrip())
    return lines
