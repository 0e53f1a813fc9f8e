"""The overview of a report as Markdown or LaTeX."""

from ...support.terminal import printable
from ..judging import tolerance
from ..judging.summary import summarize
from ..number_format import percent
from . import tables

#: Columns of the overview that are left out: they follow from others, or are useful only for interactive work.
LEFT_OUT = ("to target", "samples/s")

#: Characters that LaTeX needs escaped.
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"$\sim$",
    "^": r"\textasciicircum{}",
    "\u2212": "$-$",
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
    "\u2026": r"\ldots{}",
    "<": "$<$",
    ">": "$>$",
}
_LATEX.update({character: "\\" + character for character in "&%$#_{}"})


def to_markdown(report, summary=None):
    """Return the table of a report in GitHub's Markdown."""
    columns, rows, left = _table(report, summary)
    rule = ["---" if place < left else "---:" for place in range(len(columns))]
    lines = ["| {} |".format(" | ".join(map(_markdown, row))) for row in [columns] + rows]
    lines.insert(1, "|{}|".format("|".join(rule)))
    return "\n".join(lines + [""] + [_markdown(note) + "  " for note in _notes(report, columns)]).rstrip() + "\n"


def to_latex(report, summary=None):
    """Return the table of a report in LaTeX, for the package booktabs."""
    columns, rows, left = _table(report, summary)
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in [columns] + rows]
    aligned = "l" * left + "r" * (len(columns) - left)
    body = [r"\begin{tabular}{%s}" % aligned, r"\toprule", lines[0], r"\midrule"] + lines[1:]
    notes = [r"\par\smallskip{\footnotesize " + r"\\ ".join(map(_latex, _notes(report, columns))) + "}"]
    return "\n".join(["% needs \\usepackage{booktabs}"] + body + [r"\bottomrule", r"\end{tabular}"] + notes) + "\n"


def _table(report, summary):
    table = tables.without(tables.levels(report, summary or summarize(report)), LEFT_OUT)
    columns, rows = table.columns, table.rows
    share = tolerance.given_to(report)
    if share is not None and any(run.equivalence for run in report.runs.values()):
        found = {level: run.equivalence for level, run in report.runs.items()}
        columns.append(f"within {percent(share)}")
        rows = [row + [found[row[0]].result if found.get(row[0]) else ""] for row in rows]
    return columns, rows, table.left


def _notes(report, columns):
    """Return what was measured and where, and the meaning of the columns, one sentence each."""
    values, runs = report.environment, report.runs.values()
    seeds = sorted({1 + len(run.repeats) for run in runs})
    told = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else "".join(map(str, seeds)) or "no"
    versions = [f"{name} {values[name]}" for name in ("torch", "ampcompat", "python") if values.get(name)]
    words = [values.get("machine"), values.get("device")] + versions
    words += ["{} seeds from {}".format(told, values.get("seed"))]
    words += ["commit {}".format(values["commit"])] if values.get("commit") else []
    notes = [", ".join(str(word) for word in words if word) + "."]
    if values.get("script"):
        notes.insert(0, "{}.".format(values["script"]))
    rounds = max([len(run.timings or []) for run in runs], default=0)
    of_speed = f", with 95 % intervals of {rounds} rounds" if rounds > 1 else ""
    of_speed = f"; speeds{of_speed}" if {"speed", "speed*"} & set(columns) else ""
    notes.append(f"Losses: medians of the last tenth, \u00b1 half the range over seeds{of_speed}.")
    return notes + ([tables.EMULATED] if "speed*" in columns else [])


def _markdown(text):
    for character in "\\|*_`[]~":
        text = text.replace(character, "\\" + character)
    return _one_line(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _latex(text):
    return _one_line("".join(_LATEX.get(character, character) for character in text))


def _one_line(text):
    """Return a cell or sentence in one line, since a line break would end it, without what controls a terminal."""
    return printable(" ".join(text.split()))
