"""A report as text for a terminal.

Owns: columns, their order and widths; what a table leaves out.
Must not touch: colours, files; judgement, which is the advisor's.
The surprise: three narrow tables instead of a wide one (losses; scale and speed; memory), so that 80 columns are
enough.
"""

import textwrap

from . import advisor
from .records import KINDS
from .words import UNKNOWN, number, percent, scale, size

_STATUS = {"ok": "", "stopped": "", "failed": "failed", "interrupted": "interrupted"}


def render(report, width=100):
    """Return the lines of a report as one text."""
    parts = [_heading(report)] + [_aligned(titles, lines) for _, titles, lines in grids(report)]
    parts += [_findings(report.runs.items(), width), _verdicts(report, width)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def grids(report):
    """Return the tables as ``[(name, titles, rows of cells)]``, levels in the first column."""
    assessed = advisor.assess(report)
    rows = [(level, run, assessed[level]) for level, run in report.runs.items()]
    found = [("losses",) + _losses(rows, report), ("scale and speed",) + _speed(rows), ("memory",) + _memory(rows)]
    return [grid for grid in found if grid[2]]


def _heading(report):
    found = report.environment
    told = [str(found[name]) for name in ("script", "device") if found.get(name)]
    told += ["{} {}".format(name, found[name]) for name in ("torch", "dtypes", "seed") if found.get(name) is not None]
    return [", ".join(told)] if told else []


def _losses(rows, report):
    baseline = report.runs.get(report.baseline)
    titles = ["level", "steps", "first loss", "last", "mean", "divergence max", "mean"]
    titles += ["beyond noise"] if baseline is not None and baseline.repeats else []
    lines = []
    for level, run, found in rows:
        values = [value for _, value in sorted(_mean_losses(run).items())]
        cells = [level, str(found.steps)] + [number(value) for value in _ends(values)]
        cells += [percent(found.largest), percent(found.mean), percent(found.beyond)]
        lines.append(cells[: len(titles)] + [_STATUS[run.status]])
    return titles + [""], lines


def _mean_losses(run):
    """Return ``{step: loss}``: of several losses in a step their sum, as training adds them up."""
    found = {}
    for loss_id in {number for _, number, _ in run.loss}:
        for step, value in run.losses(loss_id).items():
            found[step] = found.get(step, 0.0) + value
    return found


def _ends(values):
    """Return (first, last, mean) of some losses."""
    if not values:
        return (None, None, None)
    return values[0], values[-1], sum(values) / len(values)


def _speed(rows):
    titles = ["level", "skipped", "scale last", "lowest", "ms/step", "x baseline", "samples/s", "cast by"]
    lines = []
    for level, run, found in rows:
        scales = [value for _, _, value in run.scale]
        cells = [level, str(len(run.skipped)), scale(scales[-1] if scales else None), scale(min(scales, default=None))]
        cells += [_milliseconds(found.seconds), "{:.2f}".format(found.ratio) if found.ratio else UNKNOWN]
        cells += [_rate(run), run.backend or UNKNOWN]
        lines.append(cells)
    return titles, lines


def _milliseconds(seconds):
    if seconds is None:
        return UNKNOWN
    return "{:.3g}".format(seconds * 1e3) if seconds < 1 else "{:.0f}".format(seconds * 1e3)


def _rate(run):
    steps = advisor.steady_steps(run)
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

#: Findings of one level that a table shows; the page and the JSON have them all.
MOST_FINDINGS = 3

#: How the forensics begin to tell of a cause that they have told of before.
AGAIN = "As in step "


def _findings(rows, width):
    shown, rest = {}, []  # (step, text) -> the levels at which that was found
    for level, run in rows:
        chosen = _telling(run.findings)
        for finding in chosen:
            shown.setdefault((finding.step, finding.text), []).append(level)
        if len(run.findings) > len(chosen):
            rest.append("{} at {}".format(len(run.findings) - len(chosen), level))
    if not shown:
        return []
    lines = ["overflows:"]
    for (step, text), levels in sorted(shown.items(), key=lambda item: item[0][0]):
        lines += _wrapped("step {}, {}: {}".format(step, " ".join(levels), text), width)
    return lines + (_wrapped("more, most of them like these: {}".format(", ".join(rest)), width) if rest else [])


def _telling(findings):
    """Return the first finding and the last ones with news."""
    news = [finding for finding in findings if not finding.text.startswith(AGAIN)]
    return news if len(news) <= MOST_FINDINGS else news[:1] + news[1 - MOST_FINDINGS :]


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
    """Return lines in columns: the first and the last one to the left, numbers to the right."""
    widths = [max(len(row[index]) for row in [titles] + rows) for index in range(len(titles))]
    lines = []
    for row in [titles] + rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths)]
        cells[0] = row[0].ljust(widths[0])
        cells[-1] = row[-1]
        lines.append("  ".join(cells).rstrip())
    return lines
