"""Renders a report as one self-contained HTML page: ``page.html``, with ``page.css`` and the scripts ``page_*.js``.

The page does not load anything. Without JavaScript, in print and for screen readers, the charts are images in it.
"""

import html
import os
import shlex
from itertools import groupby

from ...support.terminal import printable
from .. import row_names
from ..judging.advice import recommended_level
from ..judging.summary import summarize
from . import charts, renderer, tables

#: The number of causes of skipped steps that are shown; the others are in a ``<details>`` element.
SHOWN_CAUSES = 3

#: The size of a chart for readers without JavaScript.
SIZE = {"width": 560, "height": 220}

#: The fields of rows that differ along a line.
_ALONG = ("step", "value", "scale", "skipped")


def to_html(report, summary=None, drawn=None, live=None):
    """Return a page; needs the extra ``report``.

    Args:
        report: the ``Report``.
        live: the version of a page that a server updates during the runs; it has no images for readers without
            JavaScript.
        summary, drawn: the results of ``summarize(report)`` and ``charts.charts(report)``, if known.
    """
    drawn, summary = drawn or charts.charts(report), summary or summarize(report)
    return _template().render(
        title=row_names.title(report),
        report=report,
        summary=summary,
        command=_command(report, summary),
        tables=tables,
        overview=tables.levels(report, summary),
        charts=[_figure(chart, has_picture=live is None) for chart in drawn],
        live=live,
        legend=charts.legend(report),
        shown_causes=SHOWN_CAUSES,
        configs=[charts.config(), charts.config("#d8d8d8", "#3a3f45", "#16181b")],
        javascript=renderer.javascript() if drawn else "",
    )


def _template():
    jinja2 = renderer.library("jinja2")
    loader = jinja2.FileSystemLoader(os.path.dirname(os.path.abspath(__file__)))
    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    return jinja2.Environment(loader=loader, finalize=_allowed, **options).get_template("page.html")


def _allowed(value):
    """Return a value for the page, without code points that a page cannot contain."""
    return value if hasattr(value, "__html__") else printable(str(value))


def _command(report, summary):
    """Return the command that trains at the recommended level, or None; variants are not levels."""
    script = report.environment.get("script")
    best = recommended_level(report, summary) if script and report.advice else None
    if best is None or best.level not in charts.COLOURS:
        return None
    return f"ampcompat run --opt-level {shlex.quote(best.level)} {script}"


def _figure(chart, has_picture):
    picture = renderer.image(dict(chart.spec, config=charts.config(), **SIZE), "svg") if has_picture else ""
    label = html.escape(_allowed(f"{chart.title}. {chart.caption}"))
    picture = picture.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return dict(chart._asdict(), picture=picture, spec=packed(charts.interactive(chart.spec)))


def packed(spec):
    """Return a specification whose rows are in ``usermeta``, by line and field: a tenth of their size for the page."""
    lines = []
    for fields, group in groupby(spec["data"]["values"], lambda row: {k: v for k, v in row.items() if k not in _ALONG}):
        line = list(group)
        lines.append({"fields": fields, "along": {key: [row[key] for row in line] for key in _ALONG if key in line[0]}})
    return dict(spec, data={"values": []}, usermeta={"lines": lines})


def to_frame(report):
    """Return the page of a report in a frame, which notebooks display for the report."""
    frame = '<iframe style="width: 100%; height: 60rem; border: 0" srcdoc="{}"></iframe>'
    return frame.format(html.escape(to_html(report)))
