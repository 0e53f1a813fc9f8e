"""``info``: what the installed torch supports, which cast backend O1 and O4 use with it, and why.

For each pair of dtypes, the backend is the one that ``initialize`` would choose. Nothing is changed.
"""

import platform
import sys

import torch

from .. import __version__
from ..apex import nvidia_apex
from ..engine import casting
from ..engine.casting import emulated_half_arithmetic, patch_targets
from ..engine.op_table import expansion
from ..errors import AmpError
from ..opt_levels import OPT_LEVELS
from ..support.torch_compat import devices, features, private_api
from ..support.torch_compat.torch_names import dtype_name
from .argument_parser import CommandParser

#: The effect of each rule of the op table.
RULES = {
    expansion.HALF: "inputs are cast to float16 (O1) or bfloat16 (O4)",
    expansion.FLOAT: "inputs are cast to float32",
    expansion.PROMOTE: "inputs are cast to the widest dtype among them",
    expansion.SEQUENCE: "the tensors of a list are cast to the widest dtype among them",
    expansion.BANNED: "raises an error for float16 inputs (O1) or bfloat16 inputs (O4)",
    expansion.FLOAT_IN_PLACE: "in-place form of `float`: computed in float32, the tensor keeps its dtype",
    expansion.FOLLOW_SELF: "in-place form of `half` and `promote`: the other inputs are cast to the tensor's dtype",
    expansion.PASSTHROUGH: "no casts, not even in the functions that it calls",
    expansion.FLOAT32_INSIDE: "on a CPU computed in float32; the result has the dtype of the input",
}


def info(arguments):
    """Print the features of torch, and the op table if requested."""
    parser = CommandParser(
        prog="ampcompat info",
        description="Print the versions, devices and features of the installed torch, and the cast backend that O1 and "
        "O4 use with it.",
    )
    parser.add_argument("--table", action="store_true", help="also print which functions O1 and O4 cast, and how")
    parser.add_argument(
        "--backend",
        default="auto",
        choices=("auto", "native", "patched"),
        help="say what this choice of the cast backend means here; default: auto",
    )
    options = parser.parse_args(arguments)
    for line in _feature_lines() + _support_lines() + _backend_lines(options.backend):
        print(line)
    if options.table:
        for line in _table():
            print(line)
    return 0


def _line(label, value):
    return f"{label:22} : {value}".rstrip()


def _more(text):
    """Return a line that continues the value of the line above."""
    return "{:22}   {}".format("", text)


def _feature_lines():
    devices.is_available("xla")  # torch_xla, if it is installed, is imported
    lines = [_line("ampcompat", __version__), _line("python", platform.python_version())]
    for name, value in features.read()._asdict().items():
        lines.append(_line("torch" if name == "version" else name.replace("_", " "), _readable(value)))
    for low in (torch.float16, torch.bfloat16):
        lines.append(_line(f"{_readable((low,))} on this CPU", emulated_half_arithmetic.describe(low)))
    if not features.has_function_modes():
        lines.append(_more("at O1 and O4 only: emulation at O2, O3 and O5 needs torch 2.0"))
    lines.append(_line(emulated_half_arithmetic.VARIABLE, emulated_half_arithmetic.setting()))
    other = nvidia_apex.other_apex(sys.path[1:])
    return lines + [_line("other apex", nvidia_apex.describe(other) if other else "none")]


def _support_lines():
    """Describe whether this torch version is tested, and which expected private names are missing."""
    rows, untested = private_api.gone(), features.untested()
    lines = [_line("tested", untested or "yes")]
    if untested:
        lines.append(_more("`ampcompat selftest` checks it on this machine"))
    lines.append(_line("private names missing", "" if rows else "none"))
    return lines + [_more(f"{row.owner}.{row.name}: {row.without}") for row in rows]


def _readable(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_readable(item)}" for key, item in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        return ", ".join(dtype_name(item) for item in value) or "none"
    return str(value)


def _backend_lines(backend):
    """Describe which backend each level with casts gets, why, and why not the others."""
    lines = []
    for level in (row for row in OPT_LEVELS.values() if row.patch_torch_functions):
        label = f"{level.opt_level} ({_readable((level.dtypes.low,))})"
        try:
            choice = casting.choose(features.read(), backend, level.dtypes)
        except AmpError as error:
            lines.append(_line(label, error))
            continue
        lines.append(_line(label, f"{choice.name}, because {choice.reason}"))
        lines += [_more(f"not {name}: {reason}") for name, reason in choice.rejected.items()]
    return lines


def _table():
    """Yield the lines of the op table: the rules, then each function of the installed torch that has one."""
    yield ""
    for rule, meaning in RULES.items():
        yield f"{rule:14} : {meaning}"
    yield ""
    yield "{:14} {:54} {}".format("rule", "function", "reason")
    for _, row in patch_targets.place(expansion.rows()):
        yield "{:14} {:54} {}".format(row.rule, f"{row.owner}.{row.name}", row.reason)
