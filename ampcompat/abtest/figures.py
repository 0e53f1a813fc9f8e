"""Figures of a report, by matplotlib: each chart as SVG for the page, all of them as one image for a paper.

Owns: figures, canvases, fonts, legends, layout.
Must not touch: pyplot and its global state, the user's matplotlib settings, what charts show.
The surprise: text in the SVG is text, so that it can be read aloud, searched and selected; it is laid out with the
widest font of the list, so that another one on the reader's side fits too.
"""

import io
import re
from contextlib import contextmanager

from ..errors import AmpError
from . import bars, curves, looks

MISSING = "Figures need matplotlib, which is not installed: pip install 'ampcompat[report]'."

#: Inches. A chart of the page is as wide as a phone, so that its letters are legible there unscaled.
PAGE_WIDTH = 4.4
PAPER_WIDTH = 7.2
_ROW = 2.3

_SETTINGS = {
    "font.family": "sans-serif",
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


def save(report, path):
    """Draw all charts of a report as one image of 300 dots per inch.

    The path's ending says which format: png, pdf, svg and what else matplotlib writes.
    """
    save_side_by_side([("", report)], path)


def save_side_by_side(reports, path):
    """Draw several reports, given as ``[(name, Report), …]``, as one image with a column for each."""
    with _matplotlib():
        figure = _paper([name for name, _ in reports], [report for _, report in reports])
        try:
            figure.savefig(path, dpi=300)
        except ValueError as error:  # an ending that matplotlib does not know
            raise AmpError("Cannot draw {}: {}".format(path, error)) from None


def _charts_of(report):
    """Return the charts of a report, in the order of the page."""
    return [make(report) for make in (curves.losses, curves.divergences, curves.scales, bars.times, bars.memory)]


@contextmanager
def _matplotlib():
    """Draw with our settings on top of matplotlib's own defaults, and put back what the user had."""
    try:
        import matplotlib.style
    except ImportError:
        raise AmpError(MISSING) from None
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
    keys = _keys(report, chart)
    top = _legend_height(keys, PAGE_WIDTH) if keys else 0.0
    figure = _figure(PAGE_WIDTH, sum(heights) + top)
    body = figure
    if keys:
        head, body = figure.subfigures(2, 1, height_ratios=[top, sum(heights)])
        _legend(head, keys, PAGE_WIDTH)
    _column(body, body.add_gridspec(len(heights), 1, height_ratios=heights), 0, chart.panels)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _inline(text.getvalue(), name)


def _paper(names, reports):
    """Return one figure: the panels of a report in two columns, or those of several in a column each."""
    lists = [[panel for chart in _charts_of(report) for panel in chart.panels] for report in reports]
    alone = len(reports) == 1
    columns = [lists[0][0::2], lists[0][1::2]] if alone else lists
    count = max(len(column) for column in columns)
    width = max(PAPER_WIDTH, 3.4 * len(columns))
    keys = [_keys(report) for report in reports]
    top = max(_legend_height(each, width / len(reports)) for each in keys) + (0.0 if alone else 0.25)
    heights = [max([_ROW] + [column[row].height for column in columns if row < len(column)]) for row in range(count)]
    figure = _figure(width, sum(heights) + top)
    head, body = figure.subfigures(2, 1, height_ratios=[top, sum(heights)])
    heads = [head] if alone else head.subfigures(1, len(reports))
    for part, name, each in zip(heads, names, keys):
        _legend(part, each, width / len(reports), looks.label(name, 40))
    grid = body.add_gridspec(count, len(columns), height_ratios=heights)
    for place, column in enumerate(columns):
        titles = ["{}  {}".format(_letter(row * len(columns) + place), panel.title) for row, panel in enumerate(column)]
        _column(body, grid, place, column, titles)
    return figure


def _letter(number):
    return chr(ord("a") + number) if number < 26 else str(number)


def _column(figure, grid, place, column, titles=()):
    """Draw panels one above the other; without titles they are one chart, whose lowest panel names the steps."""
    for row, panel in enumerate(column):
        axes = figure.add_subplot(grid[row, place])
        panel.draw(axes)
        _tidy(axes)
        if titles:
            axes.set_title(titles[row], loc="left", fontsize="medium", fontweight="bold")
        elif row < len(column) - 1:
            axes.set_xlabel("")


def _tidy(axes):
    """Give the axes few ticks, whole steps, and numbers without markup."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

    if axes.get_xlabel() == "step" and len(axes.get_xticks()):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    elif axes.get_xscale() == "linear" and len(axes.get_xticks()):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    if axes.get_yscale() in ("log", "symlog") and not axes.get_ylabel().startswith("scale"):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: "{:g}".format(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _signs(report, chart):
    """Return the signs that a chart has: a loss can be nan or inf, and then its divergence is inf."""
    found = looks.signs(report)
    if chart is not None and chart.name != "loss":
        found = [looks.INFINITE] if found and chart.name == "divergence" else []
    elif found and chart is None and looks.INFINITE not in found:
        found = found + [looks.INFINITE]
    return found


def _keys(report, chart=None):
    """Return ``[(name, options of a line)]`` of what the lines of a chart, or of all charts, stand for."""
    if chart is not None and chart.name not in ("loss", "divergence", "scale"):
        return []
    keys = [
        (name, {"color": colour, "linestyle": dashes, "linewidth": 1.5})
        for name, colour, dashes in looks.legend_entries(report)
    ]
    sign = {"color": "#555555", "linestyle": "none", "markersize": 5}
    keys += [(name, dict(sign, marker=marker)) for marker, name in _signs(report, chart)]
    if looks.has_noise(report) and (chart is None or chart.name == "divergence"):
        keys.append(("noise of seeds", {"color": looks.NOISE, "linewidth": 7, "solid_capstyle": "butt"}))
    return keys


def _columns_of(keys, width):
    """Return in how many columns the keys go: as many as there is room for."""
    needed = [0.52 + 0.085 * len(name) for name, _ in keys]
    fitting = (count for count in range(len(keys), 1, -1) if sum(_column_widths(needed, count)) <= width)
    return next(fitting, 1)


def _column_widths(needed, count):
    """Yield how wide a legend's columns become: it fills one after the other, the first ones with one key more."""
    rows, longer = divmod(len(needed), count)
    start = 0
    for column in range(count):
        end = start + rows + (column < longer)
        yield max(needed[start:end])
        start = end


def _legend_height(keys, width):
    return 0.15 + 0.2 * -(-len(keys) // _columns_of(keys, width))


def _legend(figure, keys, width, title=""):
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **options) for _, options in keys]
    options = {"ncol": _columns_of(keys, width), "handlelength": 2.4, "columnspacing": 1.0, "handletextpad": 0.5}
    legend = figure.legend(lines, [name for name, _ in keys], loc="center", title=title or None, **options)
    legend.get_title().set_fontweight("bold")


def _inline(svg, name):
    """Make an SVG file part of a page: no prolog, no size of its own, ids that no other chart has, title and text."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", lambda tag: _with_own_ids(tag.group(), name), svg).strip()


def _with_own_ids(tag, name):
    tag = re.sub(r'\bid="', 'id="{}-'.format(name), tag)
    tag = tag.replace('href="#', 'href="#{}-'.format(name)).replace("url(#", "url(#{}-".format(name))
    if tag.startswith("<svg"):
        tag = re.sub(r'\s(width|height|version)="[^"]*"', "", tag)
        tag = tag.replace("<svg", '<svg role="img" aria-labelledby="{}-title"'.format(name), 1)
    return tag
