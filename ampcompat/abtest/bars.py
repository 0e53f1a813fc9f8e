"""Charts of one bar per level: how long its steps take, where its memory goes.

Owns: what these panels show and the words under them.
Must not touch: figures, canvases, files.
The surprise: two bars stand for a level's memory, what was measured and, thinner, what the formula says of it.
"""

import math

from . import advisor, series, words
from .looks import KIND_LOOKS, Chart, Panel, label, look, name_rows, prepare, say
from .records import KINDS

_EDGE = {"edgecolor": "white", "linewidth": 0.6}


def times(report):
    """Return the chart of step times."""
    caption = (
        "Boxes hold the middle half of the steps, whiskers reach from the 5th to the 95th percentile; the bold line "
        "and the number beside the level are the median. Left out, where there are others: the first step of each run "
        "as warm-up, and steps in which memory was measured."
    )
    height = 0.8 + 0.32 * len(report.runs)
    return Chart("time", "Step time", caption, [Panel("Step time", _time_drawer(report), height)])


def _time_drawer(report):
    def draw(axes):
        prepare(axes, None, "milliseconds per step")
        axes.grid(axis="y", visible=False)
        names, most = [], 0.0
        for row, (level, run) in enumerate(report.runs.items()):
            times = sorted(1000.0 * value for value in advisor.steady_seconds(run) if math.isfinite(value))
            if times:
                marks = [series.quantile(times, share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
                _box(axes, row, marks, report, level)
                most = max(most, marks[-1])
            names.append("{}: {}".format(label(level), "{:.3g} ms".format(marks[2]) if times else words.UNKNOWN))
        axes.set_xlim(0, 1.05 * most or 1)
        name_rows(axes, names)
        if not most:
            say(axes, "no level completed a step after its warm-up")

    return draw


def _box(axes, row, marks, report, level):
    colour = look(report, level)[0]
    least, low, middle, high, most = marks
    axes.plot([least, most], [row, row], color=colour, linewidth=1)
    axes.plot([least, most], [row, row], "|", color=colour, markersize=6)
    axes.barh(row, high - low, left=low, height=0.55, facecolor="white", edgecolor=colour, linewidth=1.2, zorder=3)
    axes.plot([middle, middle], [row - 0.28, row + 0.28], color=colour, linewidth=2.4, zorder=4, solid_capstyle="butt")


def memory(report):
    """Return the chart of memory by kind."""
    caption = (
        "Bytes at the peak of a step, by kind, and below each level what the formula predicts from the number of "
        "parameters. A diamond is the measured peak of the whole."
    )
    rows = _memory_rows(report)
    height = 1.25 + 0.26 * max(len(rows), 2)
    return Chart("memory", "Where the memory goes", caption, [Panel("Memory", _memory_drawer(rows), height)])


def _memory_rows(report):
    """Return ``(name, Memory)`` for each bar: of every level what was measured, and what was predicted."""
    rows = []
    for level, run in report.runs.items():
        for name, memory in ((label(level), run.memory), ("formula", run.predicted)):
            if memory is not None and any(getattr(memory, kind) for kind in KINDS + ("peak_total",)):
                rows.append((name, memory))
    return rows


def unit_of(most):
    """Return ``(bytes, name)`` of the unit in which so many bytes are read best."""
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if most >= 1024**power:
            return 1024**power, name
    return 1, "bytes"


def _memory_drawer(rows):
    def draw(axes):
        totals = [_total(memory) for _, memory in rows]
        size, unit = unit_of(max(totals, default=0))
        prepare(axes, None, None)
        axes.xaxis.set_major_formatter(lambda value, _: "{:g} {}".format(value, unit) if value else "0")
        axes.grid(axis="y", visible=False)
        if not rows:
            return say(axes, "no level measured its memory")
        for row, ((name, memory), total) in enumerate(zip(rows, totals)):
            _stack(axes, row, memory, size, 0.45 if name == "formula" else 0.7)
            if memory.peak_total and name != "formula":
                axes.plot([memory.peak_total / size], [row], "D", color="black", markersize=4)
            beside = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": "small"}
            axes.annotate(words.size(total), (total / size, row), **beside)
        axes.set_xlim(0, 1.32 * max(totals) / size)
        name_rows(axes, [name for name, _ in rows])
        _kind_legend(axes)

    return draw


def _kind_legend(axes):
    """Name the kinds under the axis, in as many columns as there is room for."""
    patches = [axes.barh(0, 0, facecolor=colour, hatch=hatch, **_EDGE) for colour, hatch in KIND_LOOKS.values()]
    wide = axes.get_window_extent().width > 3.3 * axes.figure.dpi
    place = {"loc": "upper left", "bbox_to_anchor": (-0.1, 0), "borderaxespad": 2.0, "ncol": 3 if wide else 2}
    axes.legend(patches, list(KIND_LOOKS), handlelength=1.6, columnspacing=1.2, fontsize="small", **place)


def _total(memory):
    return max(sum(getattr(memory, kind) or 0 for kind in KINDS), memory.peak_total or 0)


def _stack(axes, row, memory, size, height):
    left = 0.0
    for kind, (colour, hatch) in KIND_LOOKS.items():
        width = (getattr(memory, kind) or 0) / size
        if width > 0:
            axes.barh(row, width, left=left, height=height, facecolor=colour, hatch=hatch, **_EDGE)
        left += width
