"""The charts of a report: data for the specifications of Vega-Lite in ``chart_specifications.json``.

The interactive page and images use the same specifications. A level has the same color everywhere, from the palette of
Okabe and Ito, which color-blind readers can distinguish.
"""

import json
import math
import os
import re
import textwrap
from bisect import bisect_left
from collections import namedtuple
from itertools import cycle, groupby
from operator import itemgetter

from ..judging import curves
from ..judging.level_differences import find_differences
from ..judging.summary import quartiles, steady_seconds
from ..number_format import percent
from ..report_data import KINDS

#: ``spec`` has no size and no ``config``.
Chart = namedtuple("Chart", "name title caption spec")

#: The colours of the levels, and of other rows when those of absent levels are used up.
COLOURS = dict(O0="#808080", O1="#0072b2", O2="#d55e00", O3="#009e73", O4="#aa4488", O5="#b8860b")
MORE_COLOURS = ["#56b4e9", "#000000", "#cc79a7", "#7a4b00", "#5e3c99", "#b00020"]

#: Smoothing, by the name in the menu -> the share of the points over which values are averaged.
SMOOTHING = {"none": 0.0, "light": 0.02, "strong": 0.1}
POINTS = 400

#: A chart is logarithmic by default if its values span more than this; differences above 100 % are beyond the axis.
LOGARITHMIC = 1e4


#: Members of every object of JavaScript: Vega reads a text that is one of these as that member.
_MEMBERS = re.compile("constructor|hasOwnProperty|isPrototypeOf|propertyIs.*|to(Locale)?String|valueOf|__.*__")

#: Characters of a name in a chart, and lines above the charts of an image; Vega takes long for long ones.
LONGEST, MOST_LINES = 200, 40

#: Units of memory, the largest first.
UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def _read(name):
    """Return a part of ``chart_specifications.json``."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "chart_specifications.json"), encoding="utf-8") as file:
        return json.load(file)[name]


def charts(report):
    """Return the ``Chart`` objects of a report; a chart without data is left out."""
    names = {name for _, run in _runs(report) for name in curves.series_names(run)}
    found = [_differences(report)]
    found += [_values(report, name, names) for name in sorted(names, key=lambda name: (name[0], str(name[1])))]
    found += [_scales(report), _times(report), _memory(report)]
    return [chart for chart in found if chart.spec["data"]["values"]]


def drawable(name):
    """Return a name as Vega can draw it: shorter if it is long, and no member of JavaScript's objects."""
    if len(name) > LONGEST:
        name = name[: LONGEST // 2] + "\u2026" + name[-LONGEST // 2 :]
    return name + " " if _MEMBERS.fullmatch(name) else name


def interactive(spec):
    """Return the specification of a chart of the page: its script hides runs, draws a crosshair, and zooms."""
    found = dict(spec, transform=[_read("hiding")] + spec.get("transform", []), params=_read("signals"))
    if "params" not in spec:
        return found
    menus = _read("menus")
    found["params"] = [dict(param, bind=menus[param["name"]]) for param in spec["params"]] + found["params"]
    lines = next(each for each in spec["layer"] if "params" not in each and each["mark"]["type"] == "line")
    encoding = {name: dict(channel) for name, channel in lines["encoding"].items() if channel is not None}
    for name in ("x", "y"):
        encoding[name]["scale"] = _zoomed(name, encoding[name].get("scale", {}))
    encoding["color"]["legend"] = None
    layers = [dict(each, encoding=dict(encoding, tooltip=None)) if each is lines else each for each in spec["layer"]]
    return dict(found, layer=layers + [_read("crosshair")])


def _zoomed(name, scale):
    """Return a scale with the range of a zoom, if there is one."""
    low, high = scale.get("domain", ("null", "null"))
    scale = {key: value for key, value in scale.items() if key != "domain"}
    ends = {"domainMin": ("low", low), "domainMax": ("high", high)}
    text = "{0}_{1} === null ? {2} : {0}_{1}"
    return dict(scale, **{key: {"expr": text.format(name, end, own)} for key, (end, own) in ends.items()})


def legend(report):
    """Return the data of a page's legend: runs, colors and seeds."""
    palette = _palette(report)
    return [
        {"run": name, "colour": palette[name], "seeds": 1 + len(run.repeats), "remark": _remark(run)}
        for name, run in _runs(report)
    ]


def _remark(run):
    """Return why a run has no line in the charts of losses, or ""."""
    losses = run.losses().values()
    if any(map(math.isfinite, losses)):
        return ""
    return "never finite" if losses else "failed at its start" if run.status == "failed" else "no losses"


#: Units of width and height of a chart in an image, between two charts, and of an axis with its labels and title.
PANEL, GAP, AXIS = (420, 180), 40, 60


def figure(drawn, title="", lines=()):
    """Return one specification with all these charts in two columns, for an image.

    The last of an odd number is as wide as two.

    Args:
        drawn: what ``charts`` returned.
        title, lines: the text above the charts, such as the script and the verdicts.
    """
    params = {param["name"]: param for chart in drawn for param in chart.spec.get("params", ())}
    rows = [drawn[place : place + 2] for place in range(0, len(drawn), 2)]
    own = {"resolve": {"scale": {"color": "independent"}}}  # a legend for each chart
    whole = {
        "vconcat": [dict(own, hconcat=[_panel(chart, len(row)) for chart in row], spacing=GAP) for row in rows],
        "spacing": 28,
        **own,
        "params": list(params.values()),
        "config": config(),
        "padding": 16,
    }
    if title:
        lines = [drawable(line) for line in lines[:MOST_LINES]]
        heading = {"text": drawable(title), "subtitle": lines, "anchor": "start", "fontSize": 16, "offset": 18}
        whole["title"] = dict(heading, subtitleFontSize=13, subtitlePadding=6, subtitleLineHeight=18)
    return whole


def _panel(chart, columns):
    width, height = PANEL
    width = width if columns == 2 else 2 * width + GAP + AXIS
    title = {"text": chart.title, "subtitle": textwrap.wrap(chart.caption, width // 6), "subtitlePadding": 4}
    return dict(chart.spec, title=title, width=width, height=height, params=[])


def config(ink="#333", grid="#e3e3e3", background="#ffffff"):
    """Return colours and fonts for a page."""
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"}
    return {
        "axis": dict(text, gridColor=grid, domainColor=ink, tickColor=ink, labelFlush=False),
        "legend": dict(text, symbolStrokeWidth=3, symbolOpacity=1),
        "view": {"stroke": None},
        "font": 'system-ui, "DejaVu Sans", Arial, sans-serif',
        "background": background,
        "padding": {"left": 5, "top": 5, "right": 12, "bottom": 5},  # for the last label of an axis
        "title": {"color": ink, "anchor": "start", "fontSize": 14, "subtitleColor": ink, "subtitleFontSize": 11},
    }


def _runs(report):
    """Return (name in a chart, run) of every level of a report."""
    return [(drawable(level), run) for level, run in report.runs.items()]


def _palette(report):
    """Return ``{run: its color}``; variants get colors that no level among the runs has."""
    free = cycle([colour for level, colour in COLOURS.items() if level not in report.runs] + MORE_COLOURS)
    return {drawable(level): COLOURS.get(level) or next(free) for level in report.runs}


def _filled(name, rows, report):
    """Return a specification with its rows, and with the colours of their runs."""
    spec, present, palette = _read(name), {row["run"] for row in rows}, _palette(report)
    runs = [run for run in palette if run in present]
    if "params" in spec:
        spec["layer"] = [_lines(runs, spec.pop("mark", {}), spec.pop("encoding"))]
    colour = spec.get("layer", [spec])[0]["encoding"]["color"]
    if colour["field"] == "run":
        colour["scale"] = {"domain": runs, "range": [palette[run] for run in runs]}
    if colour["field"] == "run" and colour["legend"]:
        colour["legend"].update(_marked(rows))
        colour["legend"]["columns"] = max(1, min(4, 48 // max(map(len, runs), default=1)))
    return dict(spec, data={"values": rows})


def _marked(rows):
    """Return the labels of a legend: runs without a finite value, which have no line, are marked."""
    unknown = {row["run"] for row in rows} - {row["run"] for row in rows if None not in row.values()}
    label = "indexof({}, datum.label) < 0 ? datum.label : datum.label + ': never finite'"
    return {"labelExpr": label.format(json.dumps(sorted(unknown)))} if unknown else {}


def _lines(runs, mark, encoding):
    """Return a layer with a line for each run: later ones are narrower, so that overlapping lines are all visible."""
    lines = _read("lines")
    lines["mark"].update(mark)
    lines["encoding"].update(encoding)
    # In a different order than the colors: Vega-Lite draws one legend for scales with equal domains.
    lines["encoding"]["strokeWidth"]["scale"] = {"domain": runs[::-1], "range": [1.5, min(6.5, 1.5 + len(runs))]}
    return lines


# -- values by step ----------------------------------------------------------------------------------------------------


def _values(report, name, names):
    rows = []
    for label, run in _runs(report):
        for seed, each in enumerate([run] + run.repeats, 1):
            rows += _rows(curves.points(each, name), seed=seed, run=label)
    rows.sort(key=lambda row: -row["seed"])  # the first is drawn first, below the other lines
    kind, own = name
    losses = [each for each in names if each[0] == "loss"]
    title = drawable(own) if kind == "metric" else "Loss" if losses == [("loss", 0)] else f"Loss {own}"
    caption = "By optimizer step; pale lines are further seeds, wide ones lie under others. Gaps are inf or nan."
    spec = _filled("loss", rows, report)
    spec["layer"][0]["encoding"]["y"]["axis"]["title"] = title.lower()
    sizes = [row["value"] for row in rows if (row["value"] or 0.0) > 0]
    spec["params"][1]["value"] = bool(sizes) and max(sizes) > LOGARITHMIC * min(sizes)
    return Chart(f"{kind}-{own}", title, caption, spec)


def _rows(points, **fields):
    """Return one row per step with the value smoothed in each way, thinned."""
    rows, means = [], averaged(points, POINTS)
    for name, share in SMOOTHING.items():
        width = int(len(means) * share)
        kept = smoothed(means, width) if width > 1 else thinned(points, POINTS)
        rows += [dict(fields, step=step, value=_rounded(value), smoothed=name) for step, value in kept]
    return rows


def _rounded(value):
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _differences(report):
    rows, allowed = [], []
    baseline = report.runs.get(report.baseline)
    for label, run in _runs(report) if baseline is not None else ():
        if run is not baseline:
            rows += _rows(curves.relative_gaps(run, baseline), seed=1, run=label)
            allowed += [each.allowed for each in find_differences(run, baseline)[:1] if each.variation is not None]
    spec = _filled("difference", rows, report)
    if any(abs(row["value"] or 0.0) > 1 for row in rows):
        spec["layer"][0]["encoding"]["y"]["scale"] = {"domain": [-1, 1]}
    caption = (
        "Loss minus the baseline's of the same seed after as many updates, as a share of it; skipped steps are not "
        "counted."
    )
    if allowed:
        band, limit = _read("band"), max(allowed)
        band["encoding"].update(y={"datum": -limit, "type": "quantitative"}, y2={"datum": limit})
        spec["layer"].insert(0, band)
        caption += f" Grey: what is allowed at the end, \u00b1 {percent(limit)}."
    return Chart("difference", "Difference from the baseline", caption, spec)


def _scales(report):
    rows = []
    for label, run in _runs(report):
        points, skipped = [(step, value) for step, loss_id, value in run.scale if loss_id == 0], set(run.skipped)
        changes = [next(group) for _, group in groupby(points, itemgetter(1))] + points[-1:]
        kept = sorted(set(changes + [point for point in points if point[0] in skipped][:POINTS]))
        kept = [(step, value if math.isfinite(value) else None) for step, value in kept]
        rows += [{"run": label, "step": step, "scale": value, "skipped": step in skipped} for step, value in kept]
    if len({(row["run"], row["scale"]) for row in rows}) == len({row["run"] for row in rows}):
        rows = []  # the scale of each run is constant: the table has it
    spec = _filled("scale", rows, report)
    spec["layer"] += [_read("skips")] if any(row["skipped"] for row in rows) else []
    caption = "The factor of the first loss, logarithmic. Triangles are skipped steps."
    return Chart("scale", "Loss scale and skipped steps", caption, spec)


# -- bars --------------------------------------------------------------------------------------------------------------


def _times(report):
    rows = []
    for label, run in _runs(report):
        found = quartiles(steady_seconds(run))
        if found:
            low, middle, high = (_rounded(1e3 * each) for each in found)
            rows.append({"run": label, "milliseconds": middle, "low": low, "high": high})
    caption = "Median; the line spans the middle half. Watched and measured steps, and five after each, are left out."
    return Chart("time", "Time per step", caption, _filled("time", rows, report))


def _memory(report):
    rows = [row for label, run in _runs(report) for row in _memory_rows(label, run)]
    bars = {}
    for row in rows:
        bars[row["run"]] = bars.get(row["run"], 0) + row["size"]
    largest = max(bars.values(), default=0)
    unit, divisor = next(((unit, size) for unit, size in UNITS if largest >= size), ("B", 1))
    rows = [dict(row, size=_rounded(row["size"] / divisor)) for row in rows]
    caption = (
        "By kind at the peak of a step. Pale: activations, model buffers, half copies of weights and temporary "
        "tensors, which depend on the batch."
    )
    spec = _filled("memory", rows, report)
    spec["encoding"]["x"]["title"] = f"{unit} at the peak"
    return Chart("memory", "Memory", caption, spec)


def _memory_rows(name, run):
    """Return the rows of one bar: its parts."""
    rows = []
    for place, kind in enumerate(KINDS):
        value = getattr(run.memory, kind)
        if value:
            label = "buffers and temporaries" if kind == "buffers" else kind
            is_of_params = kind not in ("activations", "buffers")
            rows.append({"run": name, "kind": label, "order": place, "is_known": is_of_params, "size": value})
    return rows


# -- points ------------------------------------------------------------------------------------------------------------
# Thinning keeps the lowest and the highest value of each stretch, as in M4 (Jugel, Jerzak, Hackenbroich, Markl, *M4: a
# visualization-oriented time series data aggregation*, VLDB 2014), so that the drawn line covers the same pixels.


def thinned(points, max_points):
    """Return at most about ``max_points`` points: the lowest, the highest and one gap of each stretch, in order.

    So a spike in one of a hundred thousand steps is still drawn.
    """
    kept = []
    for _, known, gaps in _stretches(points, max_points, 3):
        values = [value for _, value in known]
        extremes = [known[values.index(each)] for each in (min(values), max(values))] if known else []
        kept += sorted(set(extremes + gaps[:1]))
    return kept


def averaged(points, max_points):
    """Return at most ``max_points`` points: the mean of each stretch, and one gap if it has any."""
    kept = []
    for step, known, gaps in _stretches(points, max_points, 2):
        kept += ([(step, _mean([value for _, value in known]))] if known else []) + [(step, math.nan) for _ in gaps[:1]]
    return kept


def _stretches(points, max_points, kept):
    """Yield (first step, finite points, others) of stretches, of which ``kept`` points each make ``max_points``."""
    size = 1 if len(points) <= max_points else -(-len(points) // (max_points // kept))
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        known = [point for point in stretch if math.isfinite(point[1])]
        yield stretch[0][0], known, [point for point in stretch if not math.isfinite(point[1])]


def smoothed(points, width):
    """Return means over ``width`` neighbouring finite points; gaps stay."""
    known = [(step, value) for step, value in points if math.isfinite(value)]
    steps, half, kept = [step for step, _ in known], width // 2, []
    for step, value in points:
        centre = bisect_left(steps, step)
        around = [item for _, item in known[max(0, centre - half) : centre + half + 1]]
        kept.append((step, _mean(around) if math.isfinite(value) else math.nan))
    return kept


def _mean(values):
    # Not a difference of running sums: after one loss of 1e30, that would be only rounding error.
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(each / len(values) for each in values)
