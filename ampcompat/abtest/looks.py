"""The look of a report's figures: a level's colour and dashes, a kind's colour and hatching, names, axes.

Owns: what charts and panels are, and what looks the same in all of them.
Must not touch: figures, canvases, files; matplotlib itself, whose axes come from ``figures``.
The surprise: a level looks the same in every report, also in one where other levels are missing, so that pages can be
laid side by side. Colours are Okabe and Ito's, which colour-blind readers tell apart; dashes and hatching tell the same
on paper.
"""

import math
from collections import namedtuple

#: One chart of the page: a heading, what to read in it, and its panels, one above the other.
Chart = namedtuple("Chart", "name title caption panels")

#: One pair of axes: what stands over it, a function that draws on them, and its height in inches for that report.
Panel = namedtuple("Panel", "title draw height")

_LOOKS = {
    "O0": ("#000000", "-"),
    "O1": ("#0072B2", (0, (6, 2))),
    "O2": ("#D55E00", (0, (6, 2, 1, 2))),
    "O3": ("#009E73", (0, (1, 1.2))),
    "O4": ("#AA4488", (0, (3, 1.5))),
    "O5": ("#B8860B", (0, (8, 2, 2, 2, 2, 2))),
}
#: The colour of the band of noise between seeds.
NOISE = "#dddddd"

#: kind of memory -> (colour, hatching), in the order in which kinds are stacked.
KIND_LOOKS = {
    "parameters": ("#0072B2", ""),
    "gradients": ("#56B4E9", "//"),
    "masters": ("#D55E00", "\\\\"),
    "optimizer": ("#E69F00", "||"),
    "activations": ("#009E73", "xx"),
    "buffers": ("#BBBBBB", "--"),
}
#: The marker of what is infinite, and its name.
INFINITE = ("^", "inf")

_WIDTH = 16  # characters of a name


def label(name, width=_WIDTH):
    """Return a name that any font can draw and no markup of matplotlib's is read from: dollars, underscores, lines."""
    text = " ".join(str(name).split()).encode("ascii", "backslashreplace").decode("ascii")
    text = text if len(text) <= width else text[: width - 3] + "..."
    return (" " + text if text.startswith("_") else text).replace("$", r"\$")


def look(report, level):
    """Return the colour and the dashes of a level."""
    if level in _LOOKS:
        return _LOOKS[level]
    others = [name for name in report.runs if name not in _LOOKS]
    return list(_LOOKS.values())[(1 + others.index(level)) % len(_LOOKS)]


def legend_entries(report):
    """Return ``(label, colour, dashes)`` of every level."""
    return [(label(level),) + look(report, level) for level in report.runs]


def signs(report):
    """Return ``[(marker, what it means)]`` of the signs that stand for losses that are not finite."""
    values = [value for run in report.runs.values() for _, _, value in run.loss]
    found = [("x", "nan")] if any(math.isnan(value) for value in values) else []
    return found + ([INFINITE] if any(math.isinf(value) for value in values) else [])


def has_noise(report):
    """Return whether the baseline was trained with several seeds, so that there is a band to draw."""
    return report.baseline in report.runs and bool(report.runs[report.baseline].repeats)


def columns(points):
    """Return the steps and the values of some points, as plot takes them."""
    return [step for step, _ in points], [value for _, value in points]


def prepare(axes, label_y, label_x="step"):
    """Name the axes."""
    axes.set_xlabel(label_x)
    if label_y:
        axes.set_ylabel(label_y)


def say(axes, text):
    """Write a sentence where there is nothing to draw."""
    remark(axes, text)
    axes.set(xticks=[], yticks=[], xlabel="", ylabel="")


def remark(axes, text):
    """Write a sentence into the middle of the axes."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", style="italic")


def all_steps(axes, report):
    """Let every panel over steps reach over the same ones."""
    last = max([step for run in report.runs.values() for step, _, _ in run.loss + run.scale] or [0])
    axes.set_xlim(-0.03 * max(last, 1), 1.03 * max(last, 1))


def name_rows(axes, names):
    """Write a name beside each row, the first one on top."""
    axes.set_yticks(range(len(names)))
    axes.set_yticklabels(names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
