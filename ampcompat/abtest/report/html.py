"""Renders a report as one self-contained HTML page: verdicts, tables, charts, findings, failures and environment.

The page needs no network and no scripts, and works on a phone, in print and with a screen reader.
"""

import itertools
import os

from ..number_format import UNKNOWN, percent, size
from ..report_data import KINDS
from . import charts, text
from . import html_elements as elements

#: Findings of one level that are shown at once; the others are in a ``<details>`` element.
SHOWN_FINDINGS = 3

_CAPTIONS = {
    "losses": "Losses. Divergence is the distance from the baseline's loss at the same step, as a share of it.",
    "scale and speed": "Skipped steps, loss scale and speed. Times are medians without warm-up.",
    "memory": "Memory at the peak of a step, by kind.",
}
_FORMULA = (
    "Measured are the bytes at the moment of the peak. The formula adds up what a level needs for its params at any "
    "moment; it does not know what depends on the model and the batch.",
)

#: (kind, whether more was measured than predicted) -> why.
_REASONS = {
    ("gradients", True): "those of master weights and of half params exist together while they are copied",
    ("gradients", False): "at the peak not all gradients existed yet, or not every param got one",
    ("optimizer", True): "some of its state grows over several steps, or differs from that after one step",
    ("optimizer", False): "params that have had no gradient yet have no state",
    ("activations", True): "what autograd saves for the backward pass depends on the model and the batch",
    ("buffers", True): "temporary results, casts and copies within the step",
    ("buffers", False): "at the peak not all casts of weights existed",
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
    title = "Opt levels of " + (os.path.basename(str(report.environment.get("script") or "")) or "a training")
    heading = elements.paragraphs([text.heading(report)], "about")
    header = "<header>\n<h1>{}</h1>\n{}\n</header>".format(elements.escape(title), heading)
    return elements.document(title + " \u2013 ampcompat", header + "\n" + _content(report, "r0-"))


def side_by_side(reports):
    """Return several reports as one page.

    Args:
        reports: ``[(name, Report), …]``, in the order of the columns.
    """
    header = "<header>\n<h1>{} reports side by side</h1>\n</header>".format(len(reports))
    columns = []
    for place, (name, report) in enumerate(reports):
        heading = elements.paragraphs([text.heading(report)], "about")
        content = _content(report, "r{}-".format(place), 3)
        column = "<article>\n<h2>{}</h2>\n{}\n{}\n</article>".format(elements.escape(name), heading, content)
        columns.append(column)
    parts = [header, _overview(reports), '<div class="reports">\n{}\n</div>'.format("\n".join(columns))]
    return elements.document("Opt levels of {} runs \u2013 ampcompat".format(len(reports)), "\n".join(parts))


def _content(report, prefix, level=2):
    """Return the sections of one report; headings start at that level."""
    tables = [_table(*table) for table in text.tables(report)]
    parts = [
        elements.section("Verdict", [_advice(report), _verdicts(report)], level),
        elements.section("Levels", tables, level),
        elements.section("Charts", [_charts(report, prefix, level + 1)], level),
        elements.section("Memory, measured and predicted", _predictions(report), level),
        elements.section("Overflows", _findings(report, level + 1), level),
        elements.section("Levels that failed", _failures(report, level + 1), level),
        elements.section("Environment", [elements.description_list(report.environment.items())], level),
    ]
    return "\n".join(part for part in parts if part)


def _table(name, titles, rows):
    return elements.table(_CAPTIONS[name], *_without_empty_columns(_long_titles(titles), rows))


def _long_titles(titles):
    """Replace titles that are short for a terminal."""
    neighbours = zip([""] + titles, titles)
    return [_TITLES.get((before, title)) or _TITLES.get(title, title) for before, title in neighbours]


def _without_empty_columns(titles, rows):
    """Leave out columns without a title and without content."""
    kept = [place for place, title in enumerate(titles) if title or any(row[place] for row in rows)]
    return [titles[place] or "end" for place in kept], [[row[place] for place in kept] for row in rows]


def _advice(report):
    lines = elements.paragraphs(report.advice.splitlines())
    return '<div class="advice">\n{}\n</div>'.format(lines) if lines else ""


def _verdicts(report):
    verdicts = [(level, run.verdict or run.error or run.status) for level, run in report.runs.items()]
    return elements.description_list(verdicts, "verdicts") or elements.paragraphs(["No level was run."])


def _charts(report, prefix, level):
    sections = []
    for chart, svg in charts.charts(report, prefix):
        figure = elements.figure(svg, prefix + chart.name, chart.title, chart.caption)
        sections.append(elements.section(chart.title, [figure], level))
    return '<div class="figures">\n{}\n</div>'.format("\n".join(sections)) if report.runs else ""


def _predictions(report):
    """Yield a table of measured and predicted memory, and why they differ."""
    rows = []
    for level, run in report.runs.items():
        for kind in KINDS if run.predicted is not None else ():
            measured, predicted = getattr(run.memory, kind), getattr(run.predicted, kind)
            if measured or predicted:
                reason = [_difference(measured, predicted), _reason(kind, measured, predicted)]
                rows.append([level + " " + kind, size(measured), size(predicted)] + reason)
    if rows:
        titles = ["level, kind", "measured", "formula", "difference", "why"]
        table = elements.table("Measured at the peak, and predicted.", titles, rows, "numbers overview")
        yield elements.paragraphs(_FORMULA)
        yield elements.details("Measured and predicted bytes by kind", table)


def _difference(measured, predicted):
    if measured is None or predicted is None:
        return UNKNOWN
    if measured == predicted:
        return "none"
    sign = "+" if measured > predicted else "\u2212"
    share = " ({}{})".format(sign, percent(abs(measured - predicted) / predicted)) if predicted else ""
    return "{}{}{}".format(sign, size(abs(measured - predicted)), share)


def _reason(kind, measured, predicted):
    """Return why a measured number differs from the predicted one."""
    if measured is None:
        return "not measured"
    if measured == predicted:
        return ""
    more = measured > (predicted or 0)
    return _REASONS.get((kind, more), "params were added, removed or replaced since")


def _findings(report, level):
    for name, run in report.runs.items():
        findings = [(_steps(first, last), finding) for first, last, finding in _grouped(run.findings)]
        parts = [elements.description_list(findings[:SHOWN_FINDINGS])]
        if len(findings) > SHOWN_FINDINGS:
            others = findings[SHOWN_FINDINGS:]
            parts.append(elements.details("{} more".format(len(others)), elements.description_list(others)))
        yield elements.section("{}: {} skipped".format(name, len(run.skipped)), parts, level)


def _grouped(findings):
    """Return ``(first step, last step, text)`` of successive findings with the same text."""
    for finding_text, group in itertools.groupby(findings, key=lambda finding: finding.text):
        steps = [finding.step for finding in group]
        yield steps[0], steps[-1], finding_text


def _steps(first, last):
    return "step {}".format(first) if first == last else "steps {} to {}".format(first, last)


def _failures(report, level):
    for name, run in report.runs.items():
        if run.status in ("failed", "interrupted"):
            parts = [elements.paragraphs([run.error or run.status])]
            if run.traceback:
                parts.append(elements.details("Traceback", elements.preformatted(run.traceback)))
            yield elements.section(name, parts, level)


def _overview(reports):
    """Return one table of the levels of all reports."""
    rows = []
    for name, report in reports:
        tables = text.tables(report)
        cells = {title: {row[0]: dict(zip(titles, row)) for row in rows} for title, titles, rows in tables}
        for level, run in report.runs.items():
            losses, speed = cells["losses"][level], cells["scale and speed"][level]
            numbers = [losses["steps"], losses["last"], losses["divergence max"], speed["skipped"], speed["ms/step"]]
            rows.append([name, level] + numbers + [size(run.memory.peak_total), run.verdict or run.error or run.status])
    titles = ["report", "level", "steps", "last loss", "divergence max", "skipped", "ms/step", "peak memory", "verdict"]
    table = elements.table("The levels of all reports.", titles, rows, "numbers overview")
    return elements.section("All levels", [table])
