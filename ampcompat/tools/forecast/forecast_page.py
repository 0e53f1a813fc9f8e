"""The forecast as one self-contained HTML page: a map of modules and levels, drawn with Vega-Lite."""

import copy
import html
import json
import os
import shlex

from ...abtest.report import build_charts, renderer
from ...abtest.report.number_format import number, percent
from . import forecast_text

_FOLDER = os.path.dirname(os.path.abspath(__file__))

#: The number of modules on the map; those with findings and the largest margins come first.
MODULES = 80

#: A module within this number of powers of two of the limit of the range is near it; a module is marked if this share
#: of its gradients becomes 0.
NEAR, LOST = -3.0, 0.5

#: The width of the map for readers without JavaScript.
WIDTH = 560


def to_html(forecast, command):
    """Return a page; needs the extra ``report``.

    Args:
        forecast: the result of ``forecast_json.make``.
        command: the script and its arguments.
    """
    jinja2 = renderer.library("jinja2")
    folders = [_FOLDER, os.path.dirname(os.path.abspath(build_charts.__file__))]  # of this page, and of its style
    loader = jinja2.FileSystemLoader(folders)
    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    template = jinja2.Environment(loader=loader, **options).get_template("forecast.html")
    rows = cells(forecast)
    spec = heat_map(rows)
    picture = renderer.image(dict(spec, width=WIDTH, config=build_charts.config()), "svg")
    label = html.escape("A map of modules and levels; the table of findings has the same content.")
    return template.render(
        script=os.path.basename(forecast_text.name_of_script(command)),
        details=forecast["details"],
        levels=_levels(forecast),
        findings=_findings(forecast),
        advice=forecast_text.advice(forecast, command),
        command=" ".join(map(shlex.quote, command)),
        picture=picture.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1),
        spec=spec,
        states=_states(spec),
        hidden=len(_modules(forecast)) - len({row["module"] for row in rows}),
        number=number,
        configs=[build_charts.config(), build_charts.config("#d8d8d8", "#3a3f45", "#16181b")],
        javascript=renderer.javascript(),
    )


def heat_map(rows):
    """Return the Vega-Lite specification of the map."""
    with open(os.path.join(_FOLDER, "heat_map.json"), encoding="utf-8") as file:
        spec = json.load(file)
    return dict(copy.deepcopy(spec), data={"values": rows})


def _states(spec):
    """Return (state, color) of each kind of cell for the legend, which is HTML, so that it wraps on narrow screens."""
    scale = spec["encoding"]["color"]["scale"]
    return list(zip(scale["domain"], scale["range"]))


def cells(forecast):
    """Return a dict per module and level for the map: state, finding, and numbers as strings."""
    modules = _modules(forecast)[:MODULES]
    found = []
    for level, told in forecast["details"]["levels"].items():
        if told["dtype"] is None:
            continue
        margins = {each["module"]: each for each in told["margins"]}
        sentences = _by_module(forecast["levels"][level], told)
        found += [_cell(module, level, margins.get(module), sentences.get(module, [])) for module in modules]
    return found


def _cell(module, level, found, sentences):
    shown = {"module": forecast_text.name_of(module), "level": level, "finding": "; ".join(sentences) or "none"}
    if found is None:
        return dict(shown, state="a fault" if sentences else "not half here")
    lost, margin = found["lost"], found["margin"]
    state = "near the end of the range" if margin is not None and margin >= NEAR else "far from the end of the range"
    state = "mostly lost gradients" if lost >= LOST else state
    numbers = {"largest": number(found["largest"]), "gradient": number(found["gradient"]), "lost": percent(lost)}
    numbers.update(function=found["op"], margin="-" if margin is None else f"{margin:g}")
    return dict(shown, state="a fault" if sentences else state, **numbers)


def _by_module(found, told):
    """Return ``{module: sentences}`` of a level's findings."""
    sentences = {}
    for finding in found["findings"]:
        told_of = (
            [told["error"]]
            if finding["kind"] == "dtype"
            else forecast_text.reasons({"findings": [finding]}, dict(told, error=""))
        )
        sentences.setdefault(finding["module"], []).extend(told_of)
    return sentences


def _modules(forecast):
    """Return the names of the modules (None is outside), first those with findings, then by margin."""
    worst = {}
    for level, told in forecast["details"]["levels"].items():
        for each in told["margins"]:
            margin = -1e3 if each["margin"] is None else each["margin"]
            worst[each["module"]] = max(margin, worst.get(each["module"], -1e3))
        for finding in forecast["levels"][level]["findings"]:
            worst[finding["module"]] = 1e3
    return sorted(worst, key=lambda module: -worst[module])


def _levels(forecast):
    """Return (level, prediction, verdict, its first cause and the loss scale as sentences) for each half level."""
    told = forecast["details"]["levels"]
    return [
        (
            level,
            found["prediction"],
            forecast_text.verdict(found),
            forecast_text.reasons(found, told[level])[:1] + forecast_text.scale_sentence(found, told[level]),
        )
        for level, found in forecast["levels"].items()
        if told[level]["dtype"] is not None
    ]


def _findings(forecast):
    """Return (level, module, function, kind, margin, sentence) of every finding."""
    rows = []
    for level, found in forecast["levels"].items():
        for each in found["findings"]:
            sentences = _by_module({"findings": [each]}, forecast["details"]["levels"][level])[each["module"]]
            rows.append(
                (
                    level,
                    forecast_text.name_of(each["module"]),
                    each["op"],
                    each["kind"],
                    each["margin"],
                    "; ".join(sentences),
                )
            )
    return rows
