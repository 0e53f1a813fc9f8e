"""A report as one HTML file: the verdict in words, tables, charts, what went wrong, where it ran.

Owns: what the page says and in which order.
Must not touch: markup and its escaping, how charts are drawn, judgement.
The surprise: the page needs no network, no script and no other file. It is read as well on a phone, on paper and by a
screen reader, and each number in it stands in the table too.
"""

import itertools
import os

from . import figures, markup, table
from .records import KINDS
from .words import UNKNOWN, percent, size

#: Findings of one level that are told at once; the others are folded away.
TOLD = 3

_CAPTIONS = {
    "losses": "Losses. Divergence is the distance from the baseline's loss at the same step, as a share of it.",
    "scale and speed": "Skipped steps, loss scale and speed. Times are medians without warm-up.",
    "memory": "Memory at the peak of a step, by kind.",
}
_FORMULA = (
    "Measured is what was there at the moment of the peak. The formula adds up what a level keeps for its params, at "
    "whatever moment; what depends on the model and the batch is in no formula.",
)

#: (kind, whether there was more than predicted) -> why.
_REASONS = {
    ("gradients", True): "those of masters and of half params are there together while they move",
    ("gradients", False): "the peak came before all gradients were there, or not every param got one",
    ("optimizer", True): "some of its state grows for several steps, or is not what one step showed",
    ("optimizer", False): "params that have had no gradient yet have no state",
    ("activations", True): "what autograd saves for the backward pass depends on the model and the batch",
    ("buffers", True): "results that nobody saves, casts, copies inside the step: made and freed again",
    ("buffers", False): "casts of weights were not all there at the moment of the peak",
}
_TITLES = {
    "last": "last loss",
    "mean": "mean loss",
    ("divergence max", "mean"): "divergence mean",
    "scale last": "last scale",
    "lowest": "lowest scale",
    "ms/step": "ms per step",
    "x baseline": "\u00d7 baseline",
    "samples/s": "samples per s",
    "memory": "level",
    "params": "parameters",
    "grads": "gradients",
}


def to_html(report):
    """Return a report as one self-contained page; needs the extra ``report``."""
    title = _name(report)
    body = "<header>\n<h1>{}</h1>\n{}\n</header>\n{}".format(
        markup.text("Opt levels of " + title), markup.paragraphs([_about(report)], "about"), _content(report, "r0-")
    )
    return markup.document("Opt levels of {} \u2013 ampcompat".format(title), body)


def side_by_side(reports):
    """Return several reports as one page.

    Args:
        reports: ``[(name, Report), …]``, in the order in which they are to stand.
    """
    head = "<header>\n<h1>{} reports side by side</h1>\n</header>".format(len(reports))
    columns = [
        '<article>\n<h2>{}</h2>\n{}\n{}\n</article>'.format(
            markup.text(name), markup.paragraphs([_about(report)], "about"), _content(report, "r{}-".format(place), 3)
        )
        for place, (name, report) in enumerate(reports)
    ]
    parts = [head, _overview(reports), '<div class="reports">\n{}\n</div>'.format("\n".join(columns))]
    return markup.document("Opt levels of {} runs \u2013 ampcompat".format(len(reports)), "\n".join(parts))


def _name(report):
    return os.path.basename(str(report.environment.get("script") or "")) or "a training"


def _about(report):
    found = report.environment
    told = [str(found[name]) for name in ("script", "device") if found.get(name)]
    told += ["{} {}".format(name, found[name]) for name in ("torch", "seed") if found.get(name) is not None]
    return ", ".join(told)


def _content(report, prefix, level=2):
    """Return the sections of one report; headings start at that level."""
    grids = [_grid(*grid) for grid in table.grids(report)]
    parts = [
        markup.section("Verdict", [_advice(report), _verdicts(report)], level),
        markup.section("Levels", grids, level),
        markup.section("Charts", [_charts(report, prefix, level + 1)], level),
        markup.section("Memory, measured and predicted", _predictions(report), level),
        markup.section("What the forensics found", _findings(report, level + 1), level),
        markup.section("Levels that failed", _failures(report, level + 1), level),
        markup.section("Environment", [markup.pairs(report.environment.items())], level),
    ]
    return "\n".join(part for part in parts if part)


def _grid(name, titles, rows):
    return markup.table(_CAPTIONS[name], *_filled(_spelled(titles), rows))


def _spelled(titles):
    """Spell out what a terminal has no room for."""
    neighbours = zip([""] + titles, titles)
    return [_TITLES.get((before, title)) or _TITLES.get(title, title) for before, title in neighbours]


def _filled(titles, rows):
    """Leave out a column without a title in which there is nothing."""
    kept = [place for place, title in enumerate(titles) if title or any(row[place] for row in rows)]
    return [titles[place] or "end" for place in kept], [[row[place] for place in kept] for row in rows]


def _advice(report):
    lines = markup.paragraphs(report.advice.splitlines())
    return '<div class="advice">\n{}\n</div>'.format(lines) if lines else ""


def _verdicts(report):
    told = [(level, run.verdict or run.error or run.status) for level, run in report.runs.items()]
    return markup.pairs(told, "verdicts") or markup.paragraphs(["No level was run."])


def _charts(report, prefix, level):
    drawn = [
        markup.section(chart.title, [markup.figure(svg, prefix + chart.name, chart.title, chart.caption)], level)
        for chart, svg in figures.charts(report, prefix)
    ]
    return '<div class="figures">\n{}\n</div>'.format("\n".join(drawn)) if report.runs else ""


def _predictions(report):
    """Yield what was measured beside the formula's answer, and why they differ."""
    rows = []
    for level, run in report.runs.items():
        for kind in KINDS if run.predicted is not None else ():
            measured, predicted = getattr(run.memory, kind), getattr(run.predicted, kind)
            if measured or predicted:
                words = [_difference(measured, predicted), _why(kind, measured, predicted)]
                rows.append([level + " " + kind, size(measured), size(predicted)] + words)
    if rows:
        titles = ["level, kind", "measured", "formula", "difference", "why"]
        inside = markup.table("Measured at the peak, and predicted.", titles, rows, "numbers overview")
        yield markup.paragraphs(_FORMULA)
        yield markup.folded("Each kind beside the formula's answer", inside)


def _difference(measured, predicted):
    if measured is None or predicted is None:
        return UNKNOWN
    if measured == predicted:
        return "none"
    sign = "+" if measured > predicted else "\u2212"
    share = " ({}{})".format(sign, percent(abs(measured - predicted) / predicted)) if predicted else ""
    return "{}{}{}".format(sign, size(abs(measured - predicted)), share)


def _why(kind, measured, predicted):
    """Say what makes a measured number differ from the predicted one."""
    if measured is None:
        return "not measured"
    if measured == predicted:
        return ""
    more = measured > (predicted or 0)
    return _REASONS.get((kind, more), "params were added, removed or replaced since")


def _findings(report, level):
    for name, run in report.runs.items():
        told = [(_steps(first, last), text) for first, last, text in _grouped(run.findings)]
        parts = [markup.pairs(told[:TOLD])]
        if len(told) > TOLD:
            parts.append(markup.folded("{} more".format(len(told) - TOLD), markup.pairs(told[TOLD:])))
        yield markup.section("{}: {} skipped".format(name, len(run.skipped)), parts, level)


def _grouped(findings):
    """Return ``(first step, last step, text)`` of findings in a row that say the same."""
    for text, group in itertools.groupby(findings, key=lambda finding: finding.text):
        steps = [finding.step for finding in group]
        yield steps[0], steps[-1], text


def _steps(first, last):
    return "step {}".format(first) if first == last else "steps {} to {}".format(first, last)


def _failures(report, level):
    for name, run in report.runs.items():
        if run.status in ("failed", "interrupted"):
            parts = [markup.paragraphs([run.error or run.status])]
            if run.traceback:
                parts.append(markup.folded("Traceback", markup.listing(run.traceback)))
            yield markup.section(name, parts, level)


def _overview(reports):
    """Return one table of the levels of all reports."""
    rows = []
    for name, report in reports:
        cells = {grid: {row[0]: dict(zip(titles, row)) for row in rows} for grid, titles, rows in table.grids(report)}
        for level, run in report.runs.items():
            losses, speed = cells["losses"][level], cells["scale and speed"][level]
            numbers = [losses["steps"], losses["last"], losses["divergence max"], speed["skipped"], speed["ms/step"]]
            rows.append([name, level] + numbers + [size(run.memory.peak_total), run.verdict or run.error or run.status])
    titles = ["report", "level", "steps", "last loss", "divergence max", "skipped", "ms/step", "peak memory", "verdict"]
    return markup.section("All levels", [markup.table("The levels of all reports.", titles, rows, "numbers overview")])
