"""``info``: what this torch can do, which backend each casting level gets, and why.

Owns: how the facts are printed.
Must not touch: the facts and the choice, which are ``tables.torch_facts`` and ``backends.choose``.
The surprise: it chooses exactly as ``initialize`` would, for each pair of dtypes, and changes nothing.
"""

import platform
import sys

import torch

from .. import __version__, backends
from ..apex import beside
from ..errors import AmpError
from ..parts import half_math
from ..tables import op_rules, torch_facts
from ..tables.opt_levels import OPT_LEVELS
from .parsing import LineParser


def info(arguments):
    """Print the facts, and on request the op table."""
    parser = LineParser(prog="ampcompat info", description="Say what this torch can do, and which backend it gets.")
    parser.add_argument("--table", action="store_true", help="print the op table of O1 and O4 too")
    parser.add_argument("--backend", default="auto", choices=("auto", "native", "patched"), help="as for `run`")
    stated = parser.parse_args(arguments)
    facts = torch_facts.read()
    for line in _facts(facts) + _choices(facts, stated.backend):
        print(line)
    if stated.table:
        for line in _table(op_rules.rows()):
            print(line)
    return 0


def _facts(facts):
    lines = ["{:22} : {}".format("ampcompat", __version__), "{:22} : {}".format("python", platform.python_version())]
    for name, value in facts._asdict().items():
        lines.append("{:22} : {}".format("torch" if name == "version" else name.replace("_", " "), _readable(value)))
    emulated = [dtype for dtype in (torch.float16, torch.bfloat16) if half_math.is_wanted(dtype)]
    setting = "{} ({}={})".format(_readable(emulated), half_math.VARIABLE, half_math.setting())
    other = beside.other_apex(sys.path[1:])
    return lines + [
        "{:22} : {}".format("half math on CPU for", setting),
        "{:22} : {}".format("other apex", beside.about(other) if other else "none"),
    ]


def _readable(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join("{}: {}".format(key, _readable(item)) for key, item in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        return ", ".join(str(item).replace("torch.", "") for item in value) or "none"
    return str(value)


def _choices(facts, wanted):
    """Say for each level that casts by function which backend it gets, why, and why not the others."""
    lines = []
    for level in (row for row in OPT_LEVELS.values() if row.patch_torch_functions):
        label = "{} ({})".format(level.opt_level, _readable((level.dtypes.low,)))
        try:
            choice = backends.choose(facts, wanted, level.dtypes)
        except AmpError as error:
            lines.append("{:22} : {}".format(label, error))
            continue
        lines.append("{:22} : {}, because {}".format(label, choice.name, choice.reason))
        lines += ["{:22}   not {}: {}".format("", name, why) for name, why in choice.rejected.items()]
    return lines


def _table(rows):
    yield "{:14} {:20} {:34} {}".format("rule", "owner", "name", "why")
    for row in rows:
        yield "{:14} {:20} {:34} {}".format(row.rule, row.owner, row.name, row.reason)
