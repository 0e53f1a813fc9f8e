"""Bar charts: the step times of each level, and its memory, measured and (in a thinner bar) predicted."""

import math

from .. import number_format, recommendation
from ..report_data import KINDS
from . import series
from .chart_style import KIND_STYLES, Chart, Panel, label, label_axes, label_rows, line_style, show_no_data

_EDGE = {"edgecolor": "white", "linewidth": 0.6}


def times(report):
    """Return the chart of step times."""
    caption = (
        "Boxes hold the middle half of the steps, whiskers reach from the 5th to the 95th percentile; the bold line "
        "and the number beside the level are the median. If there are others, the first step of each run (warm-up) "
        "and steps in which memory was measured are left out."
    )
    height = 0.8 + 0.32 * len(report.runs)
    return Chart("time", "Step time", caption, [Panel("Step time", _time_drawer(report), height)])


def _time_drawer(report):
    def draw(axes):
        label_axes(axes, None, "milliseconds per step")
        axes.grid(axis="y", visible=False)
        names, largest = [], 0.0
        for row, (level, run) in enumerate(report.runs.items()):
            times = sorted(1000.0 * value for value in recommendation.steady_seconds(run) if math.isfinite(value))
            if times:
                quantiles = [series.quantile(times, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
                _box(axes, row, quantiles, report, level)
                largest = max(largest, quantiles[-1])
            middle = "{:.3g} ms".format(quantiles[2]) if times else number_format.UNKNOWN
            names.append("{}: {}".format(label(level), middle))
        axes.set_xlim(0, 1.05 * largest or 1)
        label_rows(axes, names)
        if not largest:
            show_no_data(axes, "no level completed a step after its warm-up")

    return draw


def _box(axes, row, quantiles, report, level):
    colour = line_style(report, level)[0]
    lowest, low, middle, high, highest = quantiles
    axes.plot([lowest, highest], [row, row], color=colour, linewidth=1)
    axes.plot([lowest, highest], [row, row], "|", color=colour, markersize=6)
    axes.barh(row, high - low, left=low, height=0.55, facecolor="white", edgecolor=colour, linewidth=1.2, zorder=3)
    axes.plot([middle, middle], [row - 0.28, row + 0.28], color=colour, linewidth=2.4, zorder=4, solid_capstyle="butt")


def memory(report):
    """Return the chart of memory by kind."""
    caption = (
        "Bytes at the peak of a step, by kind, and below each level what the formula predicts from the number of "
        "parameters. A diamond marks the measured peak of the total."
    )
    rows = _memory_rows(report)
    height = 1.25 + 0.26 * max(len(rows), 2)
    return Chart("memory", "Memory by kind", caption, [Panel("Memory", _memory_drawer(rows), height)])


def _memory_rows(report):
    """Return ``(name, Memory)`` for each bar: for every level the measured memory and the predicted one."""
    rows = []
    for level, run in report.runs.items():
        for name, memory in ((label(level), run.memory), ("formula", run.predicted)):
            if memory is not None and any(getattr(memory, kind) for kind in KINDS + ("peak_total",)):
                rows.append((name, memory))
    return rows


def _unit(largest):
    """Return ``(bytes, name)`` of the unit for an axis up to so many bytes."""
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if largest >= 1024**power:
            return 1024**power, name
    return 1, "bytes"


def _memory_drawer(rows):
    def draw(axes):
        totals = [_total(memory) for _, memory in rows]
        size, unit = _unit(max(totals, default=0))
        label_axes(axes, None, None)
        axes.xaxis.set_major_formatter(lambda value, _: "{:g} {}".format(value, unit) if value else "0")
        axes.grid(axis="y", visible=False)
        if not rows:
            return show_no_data(axes, "no level measured its memory")
        for row, ((name, memory), total) in enumerate(zip(rows, totals)):
            _stack(axes, row, memory, size, 0.45 if name == "formula" else 0.7)
            if memory.peak_total and name != "formula":
                axes.plot([memory.peak_total / size], [row], "D", color="black", markersize=4)
            place = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": "small"}
            axes.annotate(number_format.size(total), (total / size, row), **place)
        axes.set_xlim(0, 1.32 * max(totals) / size)
        label_rows(axes, [name for name, _ in rows])
        _kind_legend(axes)

    return draw


def _kind_legend(axes):
    """Draw the legend of kinds under the axis, in two or three columns."""
    patches = [axes.barh(0, 0, facecolor=colour, hatch=hatch, **_EDGE) for colour, hatch in KIND_STYLES.values()]
    wide = axes.get_window_extent().width > 3.3 * axes.figure.dpi
    place = {"loc": "upper left", "bbox_to_anchor": (-0.1, 0), "borderaxespad": 2.0, "ncol": 3 if wide else 2}
    axes.legend(patches, list(KIND_STYLES), handlelength=1.6, columnspacing=1.2, fontsize="small", **place)


def _total(memory):
    return max(sum(getattr(memory, kind) or 0 for kind in KINDS), memory.peak_total or 0)


def _stack(axes, row, memory, size, height):
    left = 0.0
    for kind, (colour, hatch) in KIND_STYLES.items():
        width = (getattr(memory, kind) or 0) / size
        if width > 0:
            axes.barh(row, width, left=left, height=height, facecolor=colour, hatch=hatch, **_EDGE)
        left += width
