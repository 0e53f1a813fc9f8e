"""The tables of a report. The terminal and the page show the same cells."""

from collections import namedtuple
from itertools import combinations
from statistics import median

from ..judging import time_to_target, tolerance
from ..judging.speed_ratio import half_width
from ..judging.summary import LossEnd, emulates_half
from ..number_format import UNKNOWN, milliseconds, number, percent, scale, seconds, signed_percent, size
from ..report_data import KINDS, Memory
from ..row_names import UNCHANGED, are_scripts

#: ``left``: how many columns are aligned to the left; others hold numbers. ``notes``: ``(column that it explains, or
#: None, sentence)``, printed below it.
Table = namedtuple("Table", "title columns rows left notes")

ENDS = "Ends: medians of the last tenth, \u00b1 half the range over seeds."
TIMES = "Times: medians of undisturbed steps."
EMULATED = "* on a CPU that emulates half precision: this says nothing about a GPU."
SAME_SPEED = "~: as fast as the baseline, within the scatter of step times."
UNMEASURED = "peak -: memory is measured in amp's sessions, and {} has none."

#: Cells without a value, and columns that are left out if no row has one.
NO_VALUE = (UNKNOWN, "not timed", "")
OPTIONAL = ("ms/step", "speed", "speed*", "to target", "samples/s", "peak")

#: Names of columns for fields of ``Memory``.
_MEMORY = dict(
    parameters="params", gradients="grads", peak_total="peak", cuda_allocated="CUDA", cuda_reserved="reserved"
)


class Bar(str):
    """A cell that has a bar on the page; ``share`` is its length, from 0 to 1."""

    share = 0.0


def levels(report, summary):
    """Return the table of all levels of a report; of several losses, each has a row.

    ``summary``: what ``summarize(report)`` returned.
    """
    several = any(len(row.losses) > 1 for row in summary.values())
    names = ["script" if are_scripts(report) else "level", "verdict"]
    speed = "speed*" if emulates_half(report) else "speed"
    columns = names + (["loss", "ends at"] if several else ["loss ends at"])
    columns += ["difference", "ms/step", speed, "to target", "samples/s", "peak", "skips"]
    fastest, rows = max([row.speed or 0.0 for row in summary.values()], default=0.0), []
    for level, row in summary.items():
        cells = {names[0]: level}
        cells.update(_of_level(row, report.runs[level], fastest, speed))
        for loss_id, loss in list((row.losses or {0: LossEnd()}).items())[: None if several else 1]:
            cells.update(_of_loss(loss), loss=str(loss_id))
            rows.append([cells.get(column, "") for column in columns])
            cells = {}
    table = Table(ENDS, columns, rows, len(names), list(dict.fromkeys(_notes(report, summary))))
    empty = [name for place, name in enumerate(columns) if all(row[place] in NO_VALUE for row in rows)]
    table = without(table, [name for name in OPTIONAL if name in empty])
    return table._replace(title=f"{ENDS} {TIMES}") if "ms/step" in table.columns else table


def without(table, names):
    """Return a table without some of its columns, and the notes on them."""
    kept = [place for place, name in enumerate(table.columns) if name not in names]
    columns, *rows = [[row[place] for place in kept] for row in [table.columns] + table.rows]
    return table._replace(columns=columns, rows=rows, notes=[note for note in table.notes if note[0] not in names])


def _notes(report, summary):
    """Return what explains cells of the overview."""
    notes, rows = [], [row for row in summary.values() if row.steps]
    if emulates_half(report):
        notes.append(("speed*", EMULATED))
    elif any(row.level != report.baseline and row.speed and _may_be_equal(row) for row in rows):
        notes.append(("speed", SAME_SPEED))
    if any(row.to_target for row in rows):
        unit = "time" if any(row.to_target and row.to_target.median_seconds for row in rows) else "steps"
        notes.append(("to target", f"to target: {unit} until the smoothed {time_to_target.until(report)}."))
    unmeasured = [row.level for row in rows if row.peak is None and report.runs[row.level].backend is None]
    unmeasured = ["the unchanged script" if level == UNCHANGED else level for level in unmeasured]
    notes += [("peak", UNMEASURED.format(level)) for level in unmeasured[:1]]
    return notes + [(None, told) for told in _same_ends(report, rows)]


def _same_ends(report, rows):
    """Return for levels whose losses end alike that their weights differ, one sentence for each two of them."""
    for one, other in combinations(rows, 2):
        sizes = [report.runs[row.level].memory.parameters for row in (one, other)]
        ends = [[loss.end for loss in row.losses.values()] for row in (one, other)]
        if ends[0] and ends[0][0] is not None and ends[0] == ends[1] and None not in sizes and sizes[0] != sizes[1]:
            sentence = "{0} and {1} end alike, and both were applied: weights take {2} at {0}, {3} at {1}."
            yield sentence.format(one.level, other.level, *map(size, sizes))


def _of_level(row, run, fastest, speed):
    """Return the cells of a level, by column; ``speed``: the name of that column."""
    told = Bar(_speed(row) if row.speed or row.interval else UNKNOWN if run.timings is None else "not timed")
    told.share = row.speed / fastest if row.speed else 0.0
    return {
        "verdict": row.kind,
        "ms/step": milliseconds(row.seconds),
        speed: told,
        "to target": _to_target(row.to_target),
        "samples/s": f"{row.rate:.0f}" if row.rate else UNKNOWN,
        "peak": size(row.peak),
        "skips": f"{row.skipped}/{row.steps}" if row.steps else UNKNOWN,
    }


def _of_loss(loss):
    """Return the cells of a loss, by column."""
    spread = f" \u00b1 {number(loss.spread, 2)}" if loss.spread is not None else ""
    end = number(loss.end) + spread
    return {"ends at": end, "loss ends at": end, "difference": signed_percent(loss.difference)}


def _speed(row):
    """Return a speed with half its interval; "~" if it may be equal to the baseline's."""
    if row.speed is None:
        return "not measurable here"
    told = "{} {:.2f}".format("~" if _may_be_equal(row) else "\u00d7", row.speed)
    return told if row.interval in (None, (1.0, 1.0)) else f"{told} \u00b1 {percent(half_width(row.interval))}"


def _may_be_equal(row):
    low, high = row.interval or (0.0, 2.0)
    return low <= 1.0 <= high and row.interval != (1.0, 1.0)


def _to_target(found):
    if found is None:
        return UNKNOWN
    if not found.is_reached:
        return "not reached"
    return f"{median(found.steps):g} steps" if found.median_seconds is None else seconds(found.median_seconds)


def equivalences(report):
    """Return the result of the tolerance for each row, one sentence each."""
    share = tolerance.given_to(report)
    found = [(level, run.equivalence) for level, run in report.runs.items() if run.equivalence is not None]
    return [tolerance.tell(level, each, share) for level, each in found]


def targets(report, summary):
    """Return the table of the time to target, with medians and ranges over seeds."""
    rows = []
    for level, row in summary.items():
        if row.to_target is not None:
            reached = f"{len(row.to_target.steps)} of {row.to_target.seeds} seeds"
            values = [row.to_target.steps, row.to_target.samples, row.to_target.seconds]
            rows.append([level, reached] + [_median_and_range(each) for each in values])
    title = f"Time to target: {time_to_target.describe(report)}, smoothed"
    return [Table(title, ["level", "reached by", "steps", "samples", "seconds"], rows, 2, [])] if rows else []


def _median_and_range(values):
    if len(values) < 2:
        return number(values[0]) if values else UNKNOWN
    return "{} ({} to {})".format(*map(number, (median(values), min(values), max(values))))


def scales(report):
    """Return the table of loss scales."""
    rows = []
    several = any(len(run.loss_ids()) > 1 for run in report.runs.values())
    for level, run in report.runs.items():
        of_run = [level, run.backend or UNKNOWN, str(1 + len(run.repeats))]
        for loss_id in sorted(run.loss_ids()) or [0]:
            values = [value for _, of, value in run.scale if of == loss_id]
            ends = [scale(values[-1] if values else None), scale(min(values, default=None))]
            rows.append(of_run + ([str(loss_id)] if several else []) + ends)
    columns = ["level", "backend", "seeds"] + (["loss"] if several else []) + ["last", "lowest"]
    return Table("Loss scales", columns, rows, 2, [])


def memory(report):
    """Return the table of memory by kind."""
    runs = report.runs
    if all(run.memory.peak_total is None for run in runs.values()):
        return []
    names = list(KINDS) + ["peak_total"]
    if any(run.memory.cuda_allocated is not None for run in runs.values()):
        names += ["cuda_allocated", "cuda_reserved"]
    rows, notes = [], {}
    for level, run in runs.items():
        if run.memory != Memory():
            rows.append([level] + [size(getattr(run.memory, name)) for name in names])
        for note in run.memory_notes:
            notes.setdefault(note, []).append(level)
    notes = [(None, "{}: {}".format(" ".join(levels), note)) for note, levels in notes.items()]
    columns = ["level"] + [_MEMORY.get(name, name) for name in names]
    return [Table("Memory by kind", columns, rows, 1, notes)]


def details(report, summary):
    """Return the tables that are shown on request."""
    return targets(report, summary) + ([scales(report)] if report.runs else []) + memory(report)


def overflows(report):
    """Return why steps were skipped as ``[(steps and levels, text), …]``, each text once, in the order of the steps."""
    return by_text({level: run.findings for level, run in report.runs.items()})


def by_text(findings):
    """Return the findings of levels as ``[(steps and levels, text), …]``, each text once, in the order of the steps."""
    found = {}
    for level, each in findings.items():
        for finding in each:
            found.setdefault(finding.text, []).append((finding.step, level))
    return [(_places(places), text) for text, places in sorted(found.items(), key=lambda item: min(item[1]))]


def _places(places):
    steps, of = sorted({step for step, _ in places}), " ".join(dict.fromkeys(level for _, level in places))
    return ("step {}" if len(steps) == 1 else "steps {} to {}").format(steps[0], steps[-1]) + ", " + of


def heading_parts(report):
    """Return what was run and where, in parts that are each to stay on one line."""
    values = report.environment
    words = [str(values[name]) for name in ("script", "device") if values.get(name)]
    named = [name for name in ("torch", "dtypes", "seed") if values.get(name) is not None]
    return words + [f"{name} {values[name]}" for name in named]
