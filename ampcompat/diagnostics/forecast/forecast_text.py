"""The forecast as text for a terminal."""

import math
import shlex
import textwrap

from ...abtest.number_format import number, percent, scale

#: The levels to recommend; the first one that works is chosen. O3 is for measuring speed.
PREFERRED = ("O1", "O2", "O4", "O5")

#: The number of findings of a level that are shown without ``--details``, and of table rows with it.
SHOWN, ROWS = 2, 40

#: The largest number of each half dtype, as text.
LARGEST = {"float16": "65,504", "bfloat16": "3.39e38"}

_TOLD = {"works": "works", "fails": "will not work"}

#: The names for the place of calls outside every model, and in the forward of a model itself.
OUTSIDE, WHOLE = "the script outside the model", "the model itself"


def to_text(forecast, command, width=80, details=False):
    """Return a forecast as text.

    Args:
        forecast: what ``forecast_json.make`` returned.
        command: the script and its arguments.
        width: of a line, in characters.
        details: add a table of the modules of each level.
    """
    told = forecast["details"]
    heading = "Forecast of {} from {} steps in float32, loss {} to {}".format(
        command[1] if command[0] == "-m" else command[0], told["steps"], *map(number, told["losses"])
    )
    lines = textwrap.wrap(heading, width)
    if told["half_dtypes"]:
        script = " ".join(map(shlex.quote, command))
        lines += textwrap.wrap(
            f"Its weights are {' and '.join(told['half_dtypes'])}: this is of float32 copies.", width
        )
        lines += ["What its own weights lose: ampcompat audit " + script]
    if told["uncompiled"]:
        lines += textwrap.wrap(f"Ran uncompiled, to be observed: {', '.join(told['uncompiled'])}.", width)
    lines += [""]
    for level, found in forecast["levels"].items():
        if told["levels"][level]["dtype"] is not None:
            lines += _level(level, found, told["levels"][level], width, details)
    for kind, problem in told["problems"].items():
        text = f"{kind} could not step in float16 ({problem}): updates lost at O3 are not in this forecast."
        lines += textwrap.wrap(text, width)
    lines += [""] + advice(forecast, command)
    return "\n".join(lines)


def argument(names):
    """Return the argument to paste into ``amp.initialize``."""
    return "keep_fp32=[{}]".format(", ".join(f'"{name}"' for name in names))


def ranking(forecast, level):
    """Return the layers that a level computes in half, the one to keep in float32 first.

    Those that the forecast proposes come first, then those with findings, then the others by their margins.
    """
    found, told = forecast["levels"][level], forecast["details"]["levels"][level]
    rows = found["findings"] + _nearest_first(told["margins"])
    names = found["keep_fp32"] + [each["module"] for each in rows]
    return list(dict.fromkeys(filter(None, names)))  # without the whole model, and the script outside of it


def verdict(found):
    """Return the forecast of a level in a few words."""
    return _TOLD.get(found["prediction"]) or "works with {}".format(argument(found["keep_fp32"]))


def _level(level, found, told, width, details):
    lines = textwrap.wrap(f"{level}  {verdict(found)}", width, subsequent_indent="    ")
    sentences = reasons(found, told)
    hidden = 0 if details else len(sentences) - SHOWN
    sentences = sentences if details else sentences[:SHOWN]
    sentences += [f"and {hidden} more (--details)"] if hidden > 0 else []
    sentences += scale_sentence(found, told)
    for sentence in sentences:
        lines += textwrap.wrap(sentence, width, initial_indent="      ", subsequent_indent="        ")
    return lines + (_margins(told) if details else [])


def reasons(found, told):
    """Return a sentence per finding of a level."""
    sentences, said = [told["error"]] if told["error"] else [], []
    if told["zero_eps"] is not None:
        optimizer, eps = told["zero_eps"]
        sentences.append(f"{optimizer}'s eps of {eps:g} is 0 in {told['dtype']}")
        said = [("epsilon", optimizer)]
    shown = [each for each in found["findings"] if each["kind"] != "dtype" and (each["kind"], each["op"]) not in said]
    return sentences + [_finding(each, told["dtype"]) for each in shown]


def name_of(module):
    """Return a module's display name; None is the script outside every model."""
    return OUTSIDE if module is None else module or WHOLE


def _finding(finding, dtype):
    module, op, margin = name_of(finding["module"]), finding["op"], finding["margin"]
    texts = {
        "overflow": "{module}: {op} is {times}too large (the largest {dtype} is {largest})",
        "underflow": "{module}: {op} is {times}too small for {dtype}",
        "lost_updates": "{module}: updates are {times}too small to change a weight in {dtype}",
        "epsilon": "{module}: the eps of {op} is 0 in {dtype}, or almost",
        "reduction": "{module}: {op} needs float32: in {dtype} it is {times}too inaccurate or large",
    }
    times = f"{number(2.0 ** abs(margin), 2)} × " if margin else ""
    return texts[finding["kind"]].format(module=module, op=op, times=times, dtype=dtype, largest=LARGEST[dtype])


def scale_sentence(found, told):
    """Return a remark on the loss scale, as a list of one sentence; an empty list if the level will not work."""
    safe = found["safe_loss_scale"]
    if safe is None or found["prediction"] == "fails":
        return []
    if told["scale"] is not None:
        return ["loss scale {}; up to {} is safe".format(scale(told["scale"]), scale(safe))]
    skips = (
        "skips no step"
        if not told["skips"]
        else "skips {} step{}".format(told["skips"], "" if told["skips"] == 1 else "s")
    )
    return [f"loss scales up to {scale(safe)} are safe; a dynamic one {skips}"]


def _nearest_first(margins):
    """Return the margins of modules, the one nearest to the limit of the range first."""
    return sorted(margins, key=lambda each: math.inf if each["margin"] is None else -each["margin"])


def _margins(told):
    modules = _nearest_first(told["margins"])
    lines = ["      {:28} {:16} {:>9} {:>9} {:>7}".format("module", "function", "largest", "gradient", "lost")]
    for module in modules[:ROWS]:
        name = name_of(module["module"])[-28:]
        row = name, module["op"][:16], number(module["largest"]), number(module["gradient"]), percent(module["lost"])
        lines.append("      {:28} {:16} {:>9} {:>9} {:>7}".format(*row))
    return lines + ([f"      and {len(modules) - ROWS} more modules"] if len(modules) > ROWS else [])


def recommended(forecast):
    """Return the recommended level: one that works as it is, or with layers in float32; None if there is none."""
    for kind in ("works", "keep_fp32"):
        for level in PREFERRED:
            if forecast["levels"][level]["prediction"] == kind:
                return level
    return None


def advice(forecast, command):
    """Return the last lines of the report: the commands to run."""
    level, script = recommended(forecast), " ".join(map(shlex.quote, command))
    if level is None:
        return ["No level will work: train in float32."]
    kept = forecast["levels"][level]["keep_fp32"]
    layers = ", " + argument(kept) if kept else ""
    call = f'model, optimizer = amp.initialize(model, optimizer, opt_level="{level}"{layers})'
    if not forecast["details"]["has_amp"]:
        return [f"Take {level}: {call}"]
    options = f"--opt-level {level}" + (" --keep-fp32 {}".format(shlex.quote(",".join(kept))) if kept else "")
    rows = "--baseline O0 --variant {}".format(shlex.quote(f"kept: {options}")) if kept else f"--levels O0,{level}"
    told = [
        f"Take {level}: ampcompat run {options} {script}",
        f"Check:   ampcompat ab {rows} {script}",
    ]
    return told + ([f"In the script: {call}"] if kept else [])
