"""Renders one or several reports as one self-contained HTML page: verdicts, table of levels, charts, details.

The page loads nothing. Without JavaScript, in print and for screen readers the charts are images in it.
"""

import itertools
import json
import os
import shlex

from ..number_format import UNKNOWN, percent, size
from ..report_data import KINDS
from ..summary import summarize
from . import charts, renderer, text
from . import html_elements as elements

#: Findings of one level that are shown at once; the others are in a ``<details>`` element.
SHOWN_FINDINGS = 3

#: How wide a chart is drawn for readers without JavaScript.
WIDTH = 560

TITLES = ["level", "verdict", "loss ends at", "difference", "ms/step", "speed", "samples/s", "peak memory", "skipped"]

#: (kind, whether more was measured than predicted) -> why.
_REASONS = {
    ("gradients", True): "those of master weights and of half params exist together while they are copied",
    ("gradients", False): "at the peak not all gradients existed yet, or not every param got one",
    ("optimizer", True): "some of its state grows over several steps, or differs from that after one step",
    ("optimizer", False): "params that have had no gradient yet have no state",
}
_UNKNOWN_TO_FORMULA = ("activations", "buffers")

#: Draws every chart, in the colours of the page, and again when these change.
_SCRIPT = """
const dark = window.matchMedia('(prefers-color-scheme: dark)');
async function draw() {
  for (const box of document.querySelectorAll('.chart')) {
    const spec = JSON.parse(box.querySelector('script').textContent), target = box.querySelector('.drawn');
    spec.config = CONFIGS[dark.matches ? 1 : 0];
    spec.width = Math.max(240, target.clientWidth - 100);
    await vegaEmbed(target, spec, {actions: {export: true, source: false, compiled: false, editor: false}});
  }
}
draw();
dark.addEventListener('change', draw);
let waiting = 0;
window.addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(draw, 200) });
for (const button of document.querySelectorAll('button.copy')) {
  button.hidden = false;
  button.onclick = () => navigator.clipboard.writeText(button.previousElementSibling.textContent);
}
"""


def to_html(reports):
    """Return a page; needs the extra ``report``.

    Args:
        reports: a ``Report``, or several as ``[(name, Report), …]``, which share the tables and charts.
    """
    reports = reports if isinstance(reports, list) else [("", reports)]
    first = reports[0][1] if reports else None
    script = os.path.basename(str(first.environment.get("script") or "")) if first else ""
    title = "Opt levels of {}".format(script or "a training" if len(reports) == 1 else "{} runs".format(len(reports)))
    drawn = charts.charts(reports)
    parts = ["<header>\n<h1>{}</h1>\n{}\n</header>".format(elements.escape(title), _headings(reports))]
    parts += [_verdict(name, report, len(reports) > 1) for name, report in reports]
    parts += [_levels(reports), elements.section("Charts", [_figures(drawn)])]
    parts += [_more(name, report, len(reports) > 1) for name, report in reports]
    return elements.document(title + " \u2013 ampcompat", "\n".join(filter(None, parts)), _scripts() if drawn else "")


def _headings(reports):
    told = [": ".join(filter(None, [name, text.heading(report)])) for name, report in reports]
    return elements.paragraphs(told, "about")


def _scripts():
    light = charts.config()
    dark = charts.config("#d8d8d8", "#3a3f45", "#16181b")
    configs = "const CONFIGS = {};".format(_json([light, dark]))
    return "<script>\n{}\n</script>\n<script>{}{}</script>".format(renderer.javascript(), configs, _SCRIPT)


def _json(value):
    """Return JSON for a script element, in which "<" could begin markup."""
    return json.dumps(value).replace("<", "\\u003c")


# -- the verdict -------------------------------------------------------------------------------------------------------


def _verdict(name, report, is_named):
    rows = summarize(report)
    lines = report.advice.splitlines()
    badges = "".join(_badge(row, report.runs[level]) for level, row in rows.items())
    parts = ['<div class="advice">\n{}\n{}</div>'.format(elements.paragraphs(lines), _command(report)) if lines else ""]
    parts.append(
        '<ul class="verdicts">\n{}</ul>'.format(badges) if badges else elements.paragraphs(["No level was run."])
    )
    return elements.section("Verdict" + (": " + name if is_named else ""), parts)


def _badge(row, run):
    kind = run.status if run.status in ("failed", "interrupted") else row.verdict.kind
    told = "" if kind == row.verdict.text else row.verdict.text
    text_of = '<li><b>{}</b> <span class="badge {}">{}</span> {}</li>\n'
    return text_of.format(elements.escape(row.level), kind.replace(" ", "-"), kind, elements.escape(told))


def _command(report):
    """Return the command that trains at the recommended level, with a button to copy it."""
    script, level = report.environment.get("script"), report.advice.partition("Take ")[2][:2]
    if not script or level not in report.runs:
        return ""
    command = "python -m ampcompat run --opt-level {} {}".format(shlex.quote(level), script)
    return '<p class="command"><code>{}</code><button class="copy" hidden>copy</button></p>\n'.format(
        elements.escape(command)
    )


def _levels(reports):
    rows, several = [], len(reports) > 1
    for name, report in reports:
        summaries = summarize(report)
        fastest = max([row.speed or 0.0 for row in summaries.values()] or [0.0])
        for cells, row in zip(text.summary_cells(report), summaries.values()):
            bar = elements.Bar(cells[5], (row.speed or 0.0) / fastest if fastest else 0.0)
            rows.append(([name] if several else []) + cells[:5] + [bar] + cells[6:])
    titles = (["report"] if several else []) + TITLES
    caption = "Ends: medians of the last tenth, \u00b1 half the range over seeds. Times: medians of unwatched steps."
    return elements.section("Levels", [elements.table(caption, titles, rows)] if rows else [])


def _figures(drawn):
    figures = []
    for chart in drawn:
        picture = renderer.image(charts.complete(chart.spec, WIDTH), "svg").decode("utf-8")
        spec = _json(charts.complete(chart.spec, WIDTH))
        figures.append(elements.figure(picture, spec, chart.name, chart.title, chart.caption))
    return '<div class="figures">\n{}\n</div>'.format("\n".join(figures)) if figures else ""


# -- details -----------------------------------------------------------------------------------------------------------


def _more(name, report, is_named):
    """Return the sections on one report alone."""
    suffix = ": " + name if is_named else ""
    parts = [
        elements.section("Memory, measured and predicted" + suffix, _predictions(report)),
        elements.section("Overflows" + suffix, _findings(report)),
        elements.section("Levels that failed" + suffix, _failures(report)),
        elements.section("Environment" + suffix, [elements.description_list(report.environment.items())]),
    ]
    return "\n".join(part for part in parts if part)


def _predictions(report):
    """Yield a table of measured and predicted memory, and one of what the formula cannot know."""
    rows, unknown = [], []
    for level, run in report.runs.items():
        for kind in KINDS if run.predicted is not None else ():
            measured, predicted = getattr(run.memory, kind), getattr(run.predicted, kind)
            if kind in _UNKNOWN_TO_FORMULA:
                unknown += [[level + " " + kind, size(measured)]] if measured else []
            elif measured or predicted:
                reason = [_difference(measured, predicted), _reason(kind, measured, predicted)]
                rows.append([level + " " + kind, size(measured), size(predicted)] + reason)
    tables = []
    if rows:
        titles = ["level, kind", "measured", "formula", "difference", "why"]
        tables.append(elements.table("At the peak, and predicted.", titles, rows, "numbers overview"))
    if unknown:
        caption = "What depends on the model and the batch, so that the formula cannot know it."
        tables.append(elements.table(caption, ["level, kind", "measured"], unknown))
    if tables:
        yield elements.details("Bytes by kind", "\n".join(tables))


def _difference(measured, predicted):
    if measured is None or predicted is None:
        return UNKNOWN
    if measured == predicted:
        return "none"
    sign = "+" if measured > predicted else "\u2212"
    share = " ({}{})".format(sign, percent(abs(measured - predicted) / predicted)) if predicted else ""
    return "{}{}{}".format(sign, size(abs(measured - predicted)), share)


def _reason(kind, measured, predicted):
    if measured is None:
        return "not measured"
    if measured == predicted:
        return ""
    return _REASONS.get((kind, measured > (predicted or 0)), "params were added, removed or replaced since")


def _findings(report):
    for name, run in report.runs.items():
        findings = [(_steps(first, last), finding) for first, last, finding in _grouped(run.findings)]
        parts = [elements.description_list(findings[:SHOWN_FINDINGS])]
        if len(findings) > SHOWN_FINDINGS:
            others = findings[SHOWN_FINDINGS:]
            parts.append(elements.details("{} more".format(len(others)), elements.description_list(others)))
        yield elements.section("{}: {} skipped".format(name, len(run.skipped)), parts, 3)


def _grouped(findings):
    """Return ``(first step, last step, text)`` of successive findings with the same text."""
    for finding_text, group in itertools.groupby(findings, key=lambda finding: finding.text):
        steps = [finding.step for finding in group]
        yield steps[0], steps[-1], finding_text


def _steps(first, last):
    return "step {}".format(first) if first == last else "steps {} to {}".format(first, last)


def _failures(report):
    for name, run in report.runs.items():
        if run.status in ("failed", "interrupted"):
            parts = [elements.paragraphs([run.error or run.status])]
            if run.traceback:
                parts.append(elements.details("Traceback", elements.preformatted(run.traceback)))
            yield elements.section(name, parts, 3)


def to_frame(report):
    """Return the page of a report in a frame, which notebooks show as the report."""
    frame = '<iframe style="width: 100%; height: 60rem; border: 0" srcdoc="{}"></iframe>'
    return frame.format(elements.escape(to_html(report)))
