"""Colours, line styles, hatching, labels and axes of a report's charts.

A level has the same style in every report, so that reports can be compared side by side. The colours are those of Okabe
and Ito, which colour-blind readers can distinguish; line styles and hatching do the same in print without colours.
"""

import math
from collections import namedtuple

#: One chart: a heading, a caption, and its panels, one above the other.
Chart = namedtuple("Chart", "name title caption panels")

#: One pair of axes: its title, a function ``draw(axes)``, and its height in inches.
Panel = namedtuple("Panel", "title draw height")

_STYLES = {
    "O0": ("#000000", "-"),
    "O1": ("#0072B2", (0, (6, 2))),
    "O2": ("#D55E00", (0, (6, 2, 1, 2))),
    "O3": ("#009E73", (0, (1, 1.2))),
    "O4": ("#AA4488", (0, (3, 1.5))),
    "O5": ("#B8860B", (0, (8, 2, 2, 2, 2, 2))),
}
#: The colour of the noise between seeds.
NOISE = "#dddddd"

#: kind of memory -> (colour, hatching), in the order in which kinds are stacked.
KIND_STYLES = {
    "parameters": ("#0072B2", ""),
    "gradients": ("#56B4E9", "//"),
    "masters": ("#D55E00", "\\\\"),
    "optimizer": ("#E69F00", "||"),
    "activations": ("#009E73", "xx"),
    "buffers": ("#BBBBBB", "--"),
}
#: The marker of infinite values, and its label.
INFINITE = ("^", "inf")

_LABEL_WIDTH = 16  # characters


def label(name, width=_LABEL_WIDTH):
    """Return a name as one line of ASCII without characters that matplotlib interprets: dollars, a first underscore."""
    text = " ".join(str(name).split()).encode("ascii", "backslashreplace").decode("ascii")
    text = text if len(text) <= width else text[: width - 3] + "..."
    return (" " + text if text.startswith("_") else text).replace("$", r"\$")


def line_style(report, level):
    """Return ``(colour, dashes)`` of a level."""
    if level in _STYLES:
        return _STYLES[level]
    others = [name for name in report.runs if name not in _STYLES]
    return list(_STYLES.values())[(1 + others.index(level)) % len(_STYLES)]


def legend_entries(report):
    """Return ``(label, colour, dashes)`` of every level."""
    return [(label(level),) + line_style(report, level) for level in report.runs]


def nonfinite_markers(report):
    """Return ``[(marker, label)]`` for the losses of a report that are not finite."""
    values = [value for run in report.runs.values() for _, _, value in run.loss]
    markers = [("x", "nan")] if any(math.isnan(value) for value in values) else []
    return markers + ([INFINITE] if any(math.isinf(value) for value in values) else [])


def has_noise(report):
    """Return whether the baseline was trained with several seeds, so that its noise is known."""
    return report.baseline in report.runs and bool(report.runs[report.baseline].repeats)


def steps_and_values(points):
    """Return the steps and the values of points, as ``plot`` takes them."""
    return [step for step, _ in points], [value for _, value in points]


def label_axes(axes, label_y, label_x="step"):
    """Label the axes."""
    axes.set_xlabel(label_x)
    if label_y:
        axes.set_ylabel(label_y)


def show_no_data(axes, text):
    """Write a sentence on axes without ticks, where there is nothing to draw."""
    write_in_middle(axes, text)
    axes.set(xticks=[], yticks=[], xlabel="", ylabel="")


def write_in_middle(axes, text):
    """Write a sentence into the middle of the axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", style="italic")


def set_step_range(axes, report):
    """Set the same range of steps in every panel of a report."""
    last = max([step for run in report.runs.values() for step, _, _ in run.loss + run.scale] or [0])
    axes.set_xlim(-0.03 * max(last, 1), 1.03 * max(last, 1))


def label_rows(axes, names):
    """Label each row, the first one on top."""
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels(names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
