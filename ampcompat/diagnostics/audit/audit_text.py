"""The report of an audit as text for a terminal."""

import shlex
import textwrap

from ...abtest.number_format import share
from ...static_analysis.reading.loops_without_apex import LoopsWithoutApex
from ...static_analysis.reading.source import read_source

#: The number of params of a finding that are listed.
_SHOWN = 5

_HALF = {"float16", "bfloat16"}


def to_text(report, command, width=100, launcher=()):
    """Return the report as text.

    Args:
        report: what ``Audit.report`` returned.
        command: the script and its arguments.
        width: of a line, in characters.
        launcher: the command that starts the script's ranks.
    """
    lines = [title(report, command)]
    for name, told in dtypes(report["dtypes"]):
        lines += textwrap.wrap(told, width, initial_indent=f"  {name:16} ", subsequent_indent=" " * 19)
    for finding in report["findings"]:
        lines += [""] + _finding(finding, width)
    repair = [f"{what:26} {each}" for what, each in commands(report, command, launcher)]
    return "\n".join(lines + ([""] + repair if repair else []))


def title(report, command):
    """Return the first line of a report."""
    wrong = [each for each in report["findings"] if each["is_wrong"]]
    script = command[1] if command[0] == "-m" else command[0]
    count = (
        "nothing is wrong" if not wrong else f"{len(wrong)} things are wrong" if len(wrong) > 1 else "1 thing is wrong"
    )
    repeated = f" ({report['repeated']} of them repeated with float32 weights)" if report["repeated"] else ""
    return f"Audit of {script}, {report['steps']} optimizer steps{repeated}: {count}"


def dtypes(dtypes):
    """Yield (of what, dtypes) as texts."""
    for name in ("weights", "buffers"):
        if dtypes[name]:
            shown = ", ".join(f"{dtype} ({count:,})" for dtype, count in dtypes[name].items())
            masters = ", ".join(dtypes["masters"]) if name == "weights" else ""
            yield name, f"{shown}, masters {masters}" if masters else shown
    layers = dtypes["activations"]
    if layers != []:
        yield "activations", "not seen: functions are compiled" if layers is None else _grouped(map(_border, layers))
    mixed = [each for each in layers or () if set(each["weights"]) == {"float32"} and set(each["inputs"]) & _HALF]
    if mixed:
        yield "float32 layers", "get " + _grouped((each["layer"], ", ".join(each["inputs"])) for each in mixed)
    if dtypes["averages"]:
        yield "averages", ", ".join(dtypes["averages"])
    for name in ("gradients", "autocast"):
        yield name, ", ".join(dtypes[name]) or "none"
    if dtypes["sums between ranks"]:
        told = [f"{dtype} ({', '.join(names)})" for dtype, names in dtypes["sums between ranks"].items()]
        yield "rank sums", "; ".join(told)
    state = [(name, ", ".join(found)) for name, found in dtypes["optimizer state"].items()]
    if state:
        yield "optimizer state", _grouped(state)


def _border(layer):
    """Return the class of a layer, and its dtypes: one, or that of its inputs and that of its outputs."""
    inputs, outputs = ", ".join(layer["inputs"]), ", ".join(layer["outputs"])
    return layer["layer"], outputs if inputs in ("", outputs) else f"{inputs} to {outputs}"


def _grouped(pairs):
    """Return ``dtypes (names); …`` of ``(name, dtypes)`` pairs."""
    names = {}
    for name, dtypes in pairs:
        names.setdefault(dtypes, {})[name] = None
    return "; ".join("{} ({})".format(dtypes, ", ".join(each)) for dtypes, each in names.items())


def _finding(finding, width):
    kind = "WRONG" if finding["is_wrong"] else "note "
    lines = textwrap.wrap(finding["text"], width, initial_indent=kind + "  ", subsequent_indent=" " * 7)
    layers = finding["layers"]
    if layers:
        longest = min(50, max(len(each["name"]) for each in layers[:_SHOWN]))
        lines.append(f"         {'param':{longest}} {'elements':>12} {'did not move':>13} {'updates lost':>13}")
        for each in layers[:_SHOWN]:
            moved, lost = moves(each)
            lines.append(f"         {each['name'][-50:]:{longest}} {each['numel']:>12,} {moved:>13} {lost:>13}")
        if len(layers) > _SHOWN:
            lines.append(f"         and {len(layers) - _SHOWN} more (--json lists all)")
    return lines + textwrap.wrap(finding["remedy"], width, initial_indent=" " * 7, subsequent_indent=" " * 7)


def moves(row):
    """Return, of a layer or tensor, the share of elements that did not move and of updates that were lost, as texts."""
    return share(None if row["unmoved"] is None else row["unmoved"] / max(row["numel"], 1)), share(row["lost"])


def commands(report, command, launcher=()):
    """Return pairs (what for, a command): to repair what is wrong, audit the repaired run, and compare its loss."""
    levels = [each["level"] for each in report["findings"] if each["is_wrong"] and each["level"] is not None]
    if not levels:
        return []
    script, level = " ".join(map(shlex.quote, command)), levels[0]
    ranks = " ".join(map(shlex.quote, launcher))
    run, option = (f"{ranks} -m ampcompat", f" --launcher {shlex.quote(ranks)}") if ranks else ("ampcompat", "")
    found = [
        ("Repair, script unchanged:", f"{run} run --opt-level {level} {script}"),
        ("  is nothing wrong then?", f"ampcompat audit{option} --opt-level {level} {script}"),
        ("  is its loss lower?", f"ampcompat ab{option} --levels O0,{level} {script}"),
    ]
    if _has_backward_pass(command[0]):
        new = f"{command[0][:-3]}_{level}.py"
        old, new = shlex.quote(command[0]), shlex.quote(new)
        found += [
            ("Repair, in the script:", f"ampcompat migrate --to-level {level} {old} -o {new}"),
            ("  is its loss lower?", f"ampcompat ab{option} --against {new} {script}"),
        ]
    return found


def _has_backward_pass(path):
    """Return whether a script is a file with a backward pass of its own: into others, ``migrate`` writes no level."""
    source = read_source(path) if path.endswith(".py") else None
    return source is not None and bool(LoopsWithoutApex(source).backward_calls)
