"""Line charts over steps: losses, their divergence, loss scales and skipped steps.

A diverging curve may leave the axes at the top: an axis that held all of it would flatten the others.
"""

import math

from .. import divergence
from . import series
from .chart_style import (
    NOISE,
    Chart,
    Panel,
    has_noise,
    label,
    label_axes,
    label_rows,
    line_style,
    nonfinite_markers,
    set_step_range,
    show_no_data,
    steps_and_values,
    write_in_middle,
)

_AXIS_LIMIT = 1000.0  # times the median loss


def _loss_ids(report):
    return sorted({loss_id for run in report.runs.values() for _, loss_id, _ in run.loss}) or [0]


def losses(report):
    """Return the chart of losses: a panel for each loss id."""
    ids = _loss_ids(report)
    titles = ["Loss"] if len(ids) == 1 else ["Loss {}".format(number) for number in ids]
    panels = [Panel(title, _loss_drawer(report, number), 2.7) for title, number in zip(titles, ids)]
    caption = "Unscaled loss per step. "
    if any(len(run.losses(number)) >= series.SMOOTHED_FROM for run in report.runs.values() for number in ids):
        caption += "Bold lines are means over a thirtieth of the run, faint ones the steps themselves. "
    if any(run.repeats for run in report.runs.values()):
        caption += "Thin lines are the same level with other seeds. "
    if nonfinite_markers(report):
        caption += "A curve breaks where the loss is nan (×) or inf (▲), and may leave the axes at the top. "
    return Chart("loss", "Loss", caption.strip(), panels)


def _loss_drawer(report, number):
    def draw(axes):
        curves = {level: sorted(run.losses(number).items()) for level, run in report.runs.items()}
        label_axes(axes, "loss" if number == 0 else "loss {}".format(number))
        if not any(curves.values()):
            return show_no_data(axes, "no level recorded a loss")
        _scale_by_range(axes, [value for points in curves.values() for _, value in series.finite(points)])
        for level, run in report.runs.items():
            for repeat in run.repeats:
                _thin_curve(axes, sorted(repeat.losses(number).items()), line_style(report, level)[0])
            _curve(axes, report, level, curves[level])
        set_step_range(axes, report)

    return draw


def _scale_by_range(axes, values):
    """Make the axis logarithmic where losses differ by orders of magnitude."""
    if not values:
        return
    lowest, middle, highest = min(values), sorted(values)[len(values) // 2], max(values)
    if lowest > 0 and highest > 50 * lowest:
        axes.set_yscale("log")
        if highest > _AXIS_LIMIT * middle:
            axes.set_ylim(lowest / 1.5, _AXIS_LIMIT * middle)
    elif highest - lowest > 1e4:
        axes.set_yscale("symlog", linthresh=1.0)


def _curve(axes, report, level, points):
    colour, dashes = line_style(report, level)
    width = series.smoothing_width(points)
    if width > 1:
        axes.plot(*steps_and_values(series.with_gaps(series.thinned(points))), color=colour, alpha=0.3, linewidth=0.5)
    shown = series.smoothed(points, width)
    dots = {"marker": "o", "markersize": 3} if len(points) <= 12 else {}
    axes.plot(*steps_and_values(shown), color=colour, linestyle=dashes, linewidth=1.5, **dots)
    height = 0.97 - 0.06 * list(report.runs).index(level)
    for steps, marker in zip(series.not_finite(points), ("x", "^")):
        place = {"transform": axes.get_xaxis_transform(), "markersize": 4.5}
        axes.plot(steps, [height] * len(steps), marker, color=colour, **place)


def _thin_curve(axes, points, colour):
    shown = series.smoothed(points, series.smoothing_width(points))
    axes.plot(*steps_and_values(shown), color=colour, alpha=0.45, linewidth=0.6)


def divergences(report):
    """Return the chart of divergence from the baseline."""
    caption = (
        "Difference of the loss from that of {} at the same step, as a share of it. Steps with equal losses have no "
        "point on this logarithmic axis."
    ).format(report.baseline)
    if nonfinite_markers(report):
        caption += " It is inf (\u25b2) where a loss is not finite and the baseline's is."
    if has_noise(report):
        caption += " The grey area is the divergence between runs of {} with different seeds.".format(report.baseline)
    panels = [Panel("Divergence", _divergence_drawer(report), 2.5)]
    return Chart("divergence", "Divergence from the baseline", caption, panels)


def _divergence_drawer(report):
    def draw(axes):
        label_axes(axes, "relative difference")
        base = report.runs.get(report.baseline)
        others = [level for level in report.runs if level != report.baseline] if base is not None else []
        curves = {level: divergence.of_level(report.runs[level], base) for level in others}
        compared = any(curves.values())
        curves = {level: [point for point in found.items() if point[1] > 0] for level, found in curves.items()}
        if not any(curves.values()):
            return show_no_data(axes, "no difference at any step" if compared else "nothing to compare")
        axes.set_yscale("log")
        noise = [(step, value) for step, value in divergence.noise(base).items() if 0 < value < math.inf]
        if noise:
            floor = min(value for points in list(curves.values()) + [noise] for _, value in points)
            axes.fill_between(*steps_and_values(series.thinned(noise)), y2=floor, color=NOISE, linewidth=0)
        for level, points in curves.items():
            _curve(axes, report, level, points)
        set_step_range(axes, report)
        if axes.get_ylim()[1] > _AXIS_LIMIT:
            axes.set_ylim(top=_AXIS_LIMIT)

    return draw


def scales(report):
    """Return the chart of loss scales and skipped steps."""
    numbers = sorted({loss_id for run in report.runs.values() for _, loss_id, _ in run.scale}) or [0]
    panels = [Panel("Loss scale", _scale_drawer(report, number, len(numbers) > 1), 2.1) for number in numbers]
    panels.append(Panel("Skipped steps", _skip_drawer(report), 0.7 + 0.22 * len(report.runs)))
    caption = (
        "The loss scale of each backward pass. Below, a stroke for every step that was skipped because a gradient was "
        "inf or nan, and their number."
    )
    return Chart("scale", "Loss scale and skipped steps", caption, panels)


def _scale_drawer(report, number, numbered):
    def draw(axes):
        label_axes(axes, "scale of loss {}".format(number) if numbered else "scale")
        known = []
        for level, run in report.runs.items():
            points = [(step, value) for step, loss_id, value in run.scale if loss_id == number and value > 0]
            points = series.thinned(series.changes(series.finite(points)))
            colour, dashes = line_style(report, level)
            axes.plot(*steps_and_values(points), color=colour, linestyle=dashes, linewidth=1.5, drawstyle="steps-post")
            known += [value for _, value in points]
        if not known:
            return show_no_data(axes, "no level recorded a scale")
        set_step_range(axes, report)
        axes.set_yscale("log", base=2)
        axes.set_ylim(min(known) / 1.6, max(known) * 1.6)
        axes.set_yticks(_powers(min(known), max(known)))
        axes.yaxis.set_major_formatter(_power_of_two)

    return draw


def _powers(lowest, highest):
    """Return about five powers of two between two scales, the highest among them."""
    low, high = math.ceil(math.log(lowest, 2)), math.floor(math.log(highest, 2))
    return [2.0**power for power in range(high, low - 1, -max(1, -(-(high - low) // 5)))] or [highest]


def _power_of_two(value, _):
    """Format a scale as 65,536 or 1/16, and a very large or small one as a power of two."""
    power = math.log(value, 2)
    if not -10 <= power <= 26 or power != int(power):
        return "2^{:g}".format(power)
    return "{:,.0f}".format(value) if power >= 0 else "1/{:,.0f}".format(1 / value)


def _skip_drawer(report):
    def draw(axes):
        label_axes(axes, None)
        axes.grid(axis="y", visible=False)
        for row, (level, run) in enumerate(report.runs.items()):
            steps = sorted(set(run.skipped))
            shown = [step for step, _ in series.thinned([(step, 0.0) for step in steps])]
            axes.eventplot(shown or [math.nan], lineoffsets=row, linelengths=0.7, colors=line_style(report, level)[0])
        label_rows(axes, ["{}: {}".format(label(level), len(run.skipped)) for level, run in report.runs.items()])
        if not any(run.skipped for run in report.runs.values()):
            write_in_middle(axes, "no step was skipped")
        set_step_range(axes, report)

    return draw
