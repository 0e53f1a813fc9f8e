"""The charts of one or several reports as specifications of Vega-Lite: one for the interactive page and for images.

A level has the same colour everywhere, from the palette of Okabe and Ito, which colour-blind readers can distinguish;
reports differ by their dashes.
"""

import math
from collections import namedtuple
from itertools import combinations

from .. import curves
from ..report_data import KINDS
from ..summary import steady_seconds
from . import series

#: ``spec`` has no size, colours of the page or schema; see ``complete``.
Chart = namedtuple("Chart", "name title caption spec")

#: level -> colour on a light page, on a dark page.
LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
COLOURS = ("#6b6b6b", "#0072b2", "#d55e00", "#009e73", "#aa4488", "#b8860b")
KIND_COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#bbbbbb")

#: Smoothing, by the name in the menu -> the share of the points over which values are averaged.
SMOOTHING = {"none": 0.0, "light": 0.02, "strong": 0.1}
POINTS = 400

_MENUS = [
    {
        "name": "smoothing",
        "value": "light",
        "bind": {"input": "select", "options": list(SMOOTHING), "name": "smoothing "},
    },
    {"name": "log", "value": False, "bind": {"input": "checkbox", "name": "logarithmic "}},
]
_LEGEND = {"name": "shown", "select": {"type": "point", "fields": ["run"]}, "bind": "legend"}
_ZOOM = {"name": "zoom", "select": "interval", "bind": "scales"}


def charts(reports):
    """Return the ``Chart`` objects of ``[(name, Report), …]``; a chart without data is left out."""
    named = [(name + " " if name and len(reports) > 1 else "", report) for name, report in reports]
    found = [_values(named, series_name) for series_name in _all_series(named)]
    found += [_differences(named), _scales(named), _times(named), _memory(named)]
    return [chart for chart in found if chart.spec["data"]["values"]]


def complete(spec, width, height=220):
    """Return a specification that can be drawn alone."""
    size = {"width": width, "height": height}
    return dict(spec, **{"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "config": config(), **size})


def config(ink="#333", grid="#e3e3e3", background="#ffffff"):
    """Return colours and fonts for a page."""
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"}
    axis = dict(text, gridColor=grid, domainColor=ink, tickColor=ink)
    header = dict(text, titleColor=ink)
    view = {"stroke": None}
    font = 'system-ui, "DejaVu Sans", Arial, sans-serif'
    parts = {"axis": axis, "legend": dict(text, symbolStrokeWidth=3), "header": header, "view": view, "font": font}
    return dict(parts, background=background, title={"color": ink, "anchor": "start", "fontSize": 14})


def figure(reports, columns=2):
    """Return one specification with all charts, for an image."""
    panels = []
    for chart in charts(reports):
        spec = {name: value for name, value in chart.spec.items() if name != "params"}
        params = [dict(each, bind=None) for each in chart.spec.get("params", ()) if "value" in each]
        spec["params"] = [{name: value for name, value in each.items() if value is not None} for each in params]
        panels.append(dict(_without_selections(spec), title=chart.title, width=400, height=180))
    whole = {"concat": panels, "columns": columns, "spacing": 32, "resolve": {"scale": {"color": "independent"}}}
    whole["params"] = _unique([param for panel in panels for param in panel.pop("params", ())])
    schema = "https://vega.github.io/schema/vega-lite/v5.json"
    return dict(whole, **{"$schema": schema, "config": config(), "padding": 16})


def _unique(params):
    return list({param["name"]: param for param in params}.values())


def _without_selections(spec):
    """Return a layered specification without what only a page can use: selections and their conditions."""
    layers = []
    for layer in spec.get("layer", ()):
        encoding = {name: value for name, value in layer["encoding"].items() if name != "opacity"}
        layers.append({name: value for name, value in dict(layer, encoding=encoding).items() if name != "params"})
    return dict(spec, layer=layers) if layers else spec


# -- values by step ----------------------------------------------------------------------------------------------------


def _all_series(named):
    found = [name for _, report in named for run in report.runs.values() for name in curves.series_names(run)]
    return sorted(set(found), key=lambda name: (name[0], str(name[1])))


def _values(named, series_name):
    rows = []
    for prefix, report in named:
        for level, run in report.runs.items():
            for repeat, each in enumerate([run] + run.repeats):
                label = prefix + level
                rows += _rows(curves.points(each, series_name), run=label, seed=repeat, report=prefix or "-")
    kind, own = series_name
    title = str(own) if kind == "metric" else "Loss" if own == 0 and _losses(named) < 2 else "Loss {}".format(own)
    caption = "By optimizer step; thin lines are further seeds. Values that are not finite leave a gap."
    return Chart("{}-{}".format(kind, own), title, caption, _lines(rows, title.lower()))


def _losses(named):
    return len([name for name in _all_series(named) if name[0] == "loss"])


def _rows(points, **fields):
    """Return one row per step with the value smoothed in each way, thinned."""
    smoothed = {}
    for name, share in SMOOTHING.items():
        width = int(len(points) * share)
        kept = series.smoothed(points, width, POINTS) if width > 1 else series.thinned(series.with_gaps(points), POINTS)
        for step, value in kept:
            smoothed.setdefault(name, []).append((step, value))
    return [
        dict(fields, step=step, value=_rounded(value), smoothed=name)
        for name, kept in smoothed.items()
        for step, value in kept
    ]


def _rounded(value):
    return float("{:.5g}".format(value)) if math.isfinite(value) else None


def _colour(rows):
    """Return the encoding of the runs' colours."""
    runs = list(dict.fromkeys(row["run"] for row in rows))
    known = {level: colour for level, colour in zip(LEVELS, COLOURS)}
    colours = [known.get(run.rpartition(" ")[2], COLOURS[index % len(COLOURS)]) for index, run in enumerate(runs)]
    legend = {"title": None, "orient": "top", "columns": 4}
    return {"field": "run", "type": "nominal", "scale": {"domain": runs, "range": colours}, "legend": legend}


def _lines(rows, title, is_share=False):
    """Return lines by step, with menus for smoothing and logarithm, zoom, hover and a legend that selects."""
    shown = "format(pow(10, datum.value), '.3~g')"
    plain = "format(datum.value, '+.3~%')" if is_share else "format(datum.value, '.4~g')"
    axis = {"title": title, "labelExpr": plain if is_share else "log ? {} : {}".format(shown, plain)}
    opacity = {"condition": {"param": "shown", "value": 0.95}, "value": 0.08}
    encoding = {
        "x": {"field": "step", "type": "quantitative", "title": "step", "axis": {"grid": False, "format": "~s"}},
        "y": {"field": "shown_value", "type": "quantitative", "axis": axis, "scale": {"zero": False}},
        "color": _colour(rows),
        "strokeDash": {"field": "report", "type": "nominal", "legend": None},
        "detail": {"field": "seed"},
        "opacity": opacity,
        "strokeWidth": {"condition": {"test": "datum.seed == 0", "value": 2}, "value": 0.8},
        "tooltip": [{"field": name} for name in ("run", "step", "value", "seed")],
    }
    transform = [{"filter": "datum.smoothed == smoothing"}] if rows and "smoothed" in rows[0] else []
    value = "datum.value" if is_share else "log ? (datum.value > 0 ? log(datum.value) / LN10 : null) : datum.value"
    transform.append({"calculate": value, "as": "shown_value"})
    line = {"mark": {"type": "line", "clip": True, "invalid": "break-paths-show-domains"}, "encoding": encoding}
    line["params"] = [_LEGEND, _ZOOM]
    params = [_MENUS[0]] if is_share else _MENUS
    return {"data": {"values": rows}, "transform": transform, "params": params, "layer": [line]}


def _differences(named):
    rows, bands = [], []
    for prefix, report in named:
        baseline = report.runs.get(report.baseline)
        if baseline is None:
            continue
        control = [_gaps(one, other) for one, other in combinations([baseline] + baseline.repeats, 2)]
        bands += [abs(value) for points in control for _, value in _late(points) if math.isfinite(value)]
        for level, run in report.runs.items():
            if level != report.baseline:
                rows += _rows(_gaps(run, baseline), run=prefix + level, seed=0, report=prefix or "-")
    spec = _lines(rows, "difference from the baseline", is_share=True)
    if bands and rows:
        limit = sorted(bands)[len(bands) // 2]
        y = {"datum": -limit, "type": "quantitative"}
        band = {
            "mark": {"type": "rect", "color": "#999999", "opacity": 0.25},
            "encoding": {"y": y, "y2": {"datum": limit}},
        }
        spec["layer"].insert(0, dict(band, data={"values": [{}]}))
    caption = (
        "Loss minus the baseline's of the same seed and step, as a share of it. Grey: the median between two seeds."
    )
    return Chart("difference", "Difference from the baseline", caption, spec)


def _gaps(run, baseline):
    """Return the relative difference of the first loss by step."""
    own, base = run.losses(), baseline.losses()
    typical = sorted(abs(value) for value in base.values() if math.isfinite(value))
    least = curves.LEAST_SHARE * typical[len(typical) // 2] if typical else 0.0
    both = [(step, own[step], base[step]) for step in sorted(own) if step in base]
    return [(step, (value - known) / (max(abs(known), least) or 1.0)) for step, value, known in both]


def _late(points):
    return points[len(points) // 2 :]


def _scales(named):
    rows = []
    for prefix, report in named:
        for level, run in report.runs.items():
            skipped = set(run.skipped)
            points = [(step, value) for step, loss_id, value in run.scale if loss_id == 0]
            kept = series.changes(points) + [point for point in points if point[0] in skipped][:POINTS]
            fields = {"run": prefix + level, "report": prefix or "-"}
            rows += [dict(fields, step=step, scale=value, skipped=step in skipped) for step, value in sorted(set(kept))]
    x = {"field": "step", "type": "quantitative", "axis": {"grid": False, "format": "~s"}}
    y = {"field": "scale", "type": "quantitative", "scale": {"type": "log", "base": 2}, "title": "loss scale"}
    tooltip = [{"field": name} for name in ("run", "step", "scale", "skipped")]
    encoding = {
        "x": x,
        "y": dict(y, axis={"labelExpr": "format(datum.value, ',')"}),
        "color": _colour(rows),
        "tooltip": tooltip,
    }
    opacity = {"condition": {"param": "shown", "value": 0.95}, "value": 0.08}
    line = {"mark": {"type": "line", "interpolate": "step-after", "clip": True}, "params": [_LEGEND, _ZOOM]}
    line["encoding"] = dict(
        encoding, opacity=opacity, strokeDash={"field": "report", "type": "nominal", "legend": None}
    )
    skips = {"mark": {"type": "point", "shape": "triangle-down", "filled": True, "size": 70, "clip": True}}
    skips.update(transform=[{"filter": "datum.skipped"}], encoding=dict(encoding, opacity=opacity))
    caption = "The factor of each loss, logarithmic. Triangles are skipped steps."
    return Chart("scale", "Loss scale and skipped steps", caption, {"data": {"values": rows}, "layer": [line, skips]})


# -- bars --------------------------------------------------------------------------------------------------------------


def _times(named):
    rows = []
    for prefix, report in named:
        for level, run in report.runs.items():
            times = sorted(steady_seconds(run))
            low, middle, high = (
                [series.quantile(times, share) * 1e3 for share in (0.25, 0.5, 0.75)] if times else [0] * 3
            )
            rows += (
                [{"run": prefix + level, "milliseconds": _rounded(middle), "low": low, "high": high}] if times else []
            )
    y = {"field": "run", "type": "nominal", "sort": None, "title": None}
    x = {"field": "milliseconds", "type": "quantitative", "title": "milliseconds per step"}
    bar = {"mark": {"type": "bar", "height": {"band": 0.6}}, "encoding": {"color": dict(_colour(rows), legend=None)}}
    range_x = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}}
    rule = {"mark": {"type": "rule", "strokeWidth": 2, "color": "#999999"}, "encoding": range_x}
    bar["encoding"].update(x=x, tooltip=[{"field": name} for name in ("run", "milliseconds", "low", "high")])
    caption = "Median; the line spans the middle half. Steps that were watched or measured do not count."
    spec = {"data": {"values": rows}, "encoding": {"y": y}, "layer": [bar, rule]}
    return Chart("time", "Time per step", caption, spec)


def _memory(named):
    rows = []
    for prefix, report in named:
        for level, run in report.runs.items():
            for place, kind in enumerate(KINDS):
                part = "activations and buffers" if kind in ("activations", "buffers") else "what the formula predicts"
                for source, memory in (("measured", run.memory), ("formula", run.predicted)):
                    value = None if memory is None else getattr(memory, kind)
                    if value and not (source == "formula" and part.startswith("act")):
                        row = {
                            "run": "{}{} {}".format(prefix, level, source),
                            "kind": kind,
                            "order": place,
                            "part": part,
                        }
                        rows.append(dict(row, MiB=_rounded(value / 2**20)))
    scale = {"domain": list(KINDS), "range": list(KIND_COLOURS)}
    legend = {"title": None, "orient": "top", "columns": 3}
    encoding = {
        "y": {"field": "run", "type": "nominal", "sort": None, "title": None, "scale": {"paddingInner": 0.25}},
        "x": {"field": "MiB", "type": "quantitative", "title": "MiB at the peak"},
        "color": {"field": "kind", "type": "nominal", "scale": scale, "legend": legend},
        "order": {"field": "order"},
        "tooltip": [{"field": name} for name in ("run", "kind", "MiB")],
    }
    caption = "By kind at the peak of a step. The formula knows nothing of activations and buffers."
    spec = {"data": {"values": rows}, "mark": {"type": "bar"}, "encoding": encoding}
    return Chart("memory", "Memory", caption, spec)
