"""Draws a report's charts with matplotlib: each as SVG for the HTML page, or all in one image.

Neither pyplot, which has global state, nor the user's matplotlib settings are used.
"""

import io
import re
from contextlib import contextmanager

from ...errors import AmpError
from . import bar_charts, chart_style, line_charts

NO_MATPLOTLIB = "Figures need matplotlib, which is not installed: pip install 'ampcompat[report]'."

#: Inches. A chart of the HTML page is as wide as a phone, so that its text is legible there unscaled.
PAGE_WIDTH = 4.4
IMAGE_WIDTH = 7.2
_MIN_ROW_HEIGHT = 2.3

_SETTINGS = {
    "font.family": "sans-serif",
    # The first one is the widest: text in the SVG stays text, and also fits if the browser uses another font.
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial", "sans-serif"],
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "hatch.color": "white",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ampcompat",
}


def charts(report, prefix=""):
    """Return ``[(Chart, SVG text)]``; ``prefix`` makes the ids of several reports in one page distinct."""
    with _matplotlib():
        return [(chart, _svg(report, chart, prefix + chart.name)) for chart in _charts_of(report)]


def save_figure(report, path):
    """Draw all charts of a report as one image of 300 dots per inch; needs the extra ``report``.

    The path's ending selects the format: png, pdf, svg or another one of matplotlib's.
    """
    save_side_by_side([("", report)], path)


def save_side_by_side(reports, path):
    """Draw several reports, given as ``[(name, Report), …]``, as one image with a column for each."""
    with _matplotlib():
        figure = _image([name for name, _ in reports], [report for _, report in reports])
        try:
            figure.savefig(path, dpi=300)
        except ValueError as error:  # an ending that matplotlib does not know
            raise AmpError("Cannot draw {}: {}".format(path, error)) from None


def _charts_of(report):
    """Return the charts of a report, in the order of the page."""
    charts_over_steps = [line_charts.losses(report), line_charts.divergences(report), line_charts.scales(report)]
    return charts_over_steps + [bar_charts.times(report), bar_charts.memory(report)]


@contextmanager
def _matplotlib():
    """Draw with ``_SETTINGS`` on top of matplotlib's defaults, and restore the user's settings."""
    try:
        import matplotlib.style
    except ImportError:
        raise AmpError(NO_MATPLOTLIB) from None
    with matplotlib.style.context(["default", _SETTINGS]):
        yield


def _figure(width, height):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), constrained_layout=True)
    FigureCanvasAgg(figure)
    return figure


def _svg(report, chart, name):
    heights = [panel.height for panel in chart.panels]
    entries = _legend_entries(report, chart)
    top = _legend_height(entries, PAGE_WIDTH) if entries else 0.0
    figure = _figure(PAGE_WIDTH, sum(heights) + top)
    body = figure
    if entries:
        head, body = figure.subfigures(2, 1, height_ratios=[top, sum(heights)])
        _legend(head, entries, PAGE_WIDTH)
    _column(body, body.add_gridspec(len(heights), 1, height_ratios=heights), 0, chart.panels)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _inline(text.getvalue(), name)


def _image(names, reports):
    """Return one figure: the panels of one report in two columns, or of several reports in one column each."""
    lists = [[panel for chart in _charts_of(report) for panel in chart.panels] for report in reports]
    alone = len(reports) == 1
    columns = [lists[0][0::2], lists[0][1::2]] if alone else lists
    count = max(len(column) for column in columns)
    width = max(IMAGE_WIDTH, 3.4 * len(columns))
    entries = [_legend_entries(report) for report in reports]
    top = max(_legend_height(each, width / len(reports)) for each in entries) + (0.0 if alone else 0.25)
    panels_by_row = [[column[row] for column in columns if row < len(column)] for row in range(count)]
    heights = [max([_MIN_ROW_HEIGHT] + [panel.height for panel in panels]) for panels in panels_by_row]
    figure = _figure(width, sum(heights) + top)
    head, body = figure.subfigures(2, 1, height_ratios=[top, sum(heights)])
    heads = [head] if alone else head.subfigures(1, len(reports))
    for part, name, each in zip(heads, names, entries):
        _legend(part, each, width / len(reports), chart_style.label(name, 40))
    grid = body.add_gridspec(count, len(columns), height_ratios=heights)
    for place, column in enumerate(columns):
        titles = ["{}  {}".format(_letter(row * len(columns) + place), panel.title) for row, panel in enumerate(column)]
        _column(body, grid, place, column, titles)
    return figure


def _letter(number):
    return chr(ord("a") + number) if number < 26 else str(number)


def _column(figure, grid, place, column, titles=()):
    """Draw panels one above the other; without titles they are one chart, and only the lowest has an x label."""
    for row, panel in enumerate(column):
        axes = figure.add_subplot(grid[row, place])
        panel.draw(axes)
        _format_ticks(axes)
        if titles:
            axes.set_title(titles[row], loc="left", fontsize="medium", fontweight="bold")
        elif row < len(column) - 1:
            axes.set_xlabel("")


def _format_ticks(axes):
    """Give the axes few ticks, whole steps, and plain numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    if axes.get_xlabel() == "step" and len(axes.get_xticks()):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    elif axes.get_xscale() == "linear" and len(axes.get_xticks()):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    if axes.get_yscale() in ("log", "symlog") and not axes.get_ylabel().startswith("scale"):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: "{:g}".format(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _markers(report, chart):
    """Return the markers of a chart: a loss can be nan or inf, and then its divergence is inf."""
    markers = chart_style.nonfinite_markers(report)
    if chart is not None and chart.name != "loss":
        markers = [chart_style.INFINITE] if markers and chart.name == "divergence" else []
    elif markers and chart is None and chart_style.INFINITE not in markers:
        markers = markers + [chart_style.INFINITE]
    return markers


def _legend_entries(report, chart=None):
    """Return ``[(label, options of a line)]`` for the legend of one chart, or of all of them."""
    if chart is not None and chart.name not in ("loss", "divergence", "scale"):
        return []
    entries = [
        (name, {"color": colour, "linestyle": dashes, "linewidth": 1.5})
        for name, colour, dashes in chart_style.legend_entries(report)
    ]
    style = {"color": "#555555", "linestyle": "none", "markersize": 5}
    entries += [(name, dict(style, marker=marker)) for marker, name in _markers(report, chart)]
    if chart_style.has_noise(report) and (chart is None or chart.name == "divergence"):
        entries.append(("noise of seeds", {"color": chart_style.NOISE, "linewidth": 7, "solid_capstyle": "butt"}))
    return entries


def _column_count(entries, width):
    """Return the number of columns of a legend: as many as fit."""
    needed = [0.52 + 0.085 * len(name) for name, _ in entries]
    fitting = (count for count in range(len(entries), 1, -1) if sum(_column_widths(needed, count)) <= width)
    return next(fitting, 1)


def _column_widths(needed, count):
    """Yield the widths of a legend's columns: it fills one after the other, the first ones with one entry more."""
    rows, longer = divmod(len(needed), count)
    start = 0
    for column in range(count):
        end = start + rows + (column < longer)
        yield max(needed[start:end])
        start = end


def _legend_height(entries, width):
    return 0.15 + 0.2 * -(-len(entries) // _column_count(entries, width))


def _legend(figure, entries, width, title=""):
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **options) for _, options in entries]
    options = {"ncol": _column_count(entries, width), "handlelength": 2.4, "columnspacing": 1.0, "handletextpad": 0.5}
    legend = figure.legend(lines, [name for name, _ in entries], loc="center", title=title or None, **options)
    legend.get_title().set_fontweight("bold")


def _inline(svg, name):
    """Turn an SVG file into an element of an HTML page: without prolog and size, with unique ids and a title."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", lambda tag: _prefix_ids(tag.group(), name), svg).strip()


def _prefix_ids(tag, name):
    tag = re.sub(r'\bid="', 'id="{}-'.format(name), tag)
    tag = tag.replace('href="#', 'href="#{}-'.format(name)).replace("url(#", "url(#{}-".format(name))
    if tag.startswith("<svg"):
        tag = re.sub(r'\s(width|height|version)="[^"]*"', "", tag)
        tag = tag.replace("<svg", '<svg role="img" aria-labelledby="{}-title"'.format(name), 1)
    return tag
