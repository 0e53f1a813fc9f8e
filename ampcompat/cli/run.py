"""``run``: give this process to a script, with ``import apex`` meaning ours.

Owns: the command line of ``run`` and the handing over.
Must not touch: the script's ``sys.argv``, ``sys.path[0]``, ``__main__``, exit code, traceback or signals.
The surprise: the script is not executed here. The process *becomes* ``python script.py`` (``exec``: same process id,
so launchers and signals notice nothing), and all it inherits from us is the environment. So everything a script can
observe is Python's own doing, spawned and forked workers included.
"""

import argparse
import importlib.util
import os
import subprocess
import sys

from ..apex import beside
from ..apex.install import environment, shadowed_by
from ..runtime import state
from . import device
from .parsing import LineParser

#: Written out so that ``run`` need not import torch; a test compares it with ``tables.opt_levels``.
LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
BACKENDS = ("auto", "native", "patched")
BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}


def run(arguments):
    """Replace this process by the script; returns only where there is nothing to run."""
    parser = _parser()
    stated = parser.parse_args(arguments)
    target = target_of(parser, stated)
    if sys.flags.ignore_environment:
        parser.error("Python was started with -E or -I, which hides PYTHONPATH; use `python -m ampcompat install`.")
    state.set_command_line(**{name: value for name, value in _overrides(stated) if value is not None})
    os.environ.update(environment())
    device.put_in_force(parser, stated.device)
    return _become([sys.executable] + interpreter_options() + target)


def _parser():
    parser = LineParser(
        prog="ampcompat run",
        usage="%(prog)s [-h] [--opt-level LEVEL] [--backend NAME] [--verbosity N] [--dtypes LOW,HIGH] "
        "[--diagnose] [--device DEVICE] (SCRIPT | -m MODULE) [ARGS ...]",
        description="Run a script that imports apex. What follows SCRIPT or MODULE belongs to it.",
    )
    parser.add_argument("--opt-level", type=level_named, metavar="LEVEL", help="O0 to O5, whatever the script asks for")
    parser.add_argument("--backend", choices=BACKENDS, metavar="NAME", help="who casts: auto, native or patched")
    parser.add_argument("--verbosity", type=_verbosity, metavar="N", help="0 says nothing, 1 what the script expects")
    parser.add_argument(
        "--dtypes",
        type=dtypes_named,
        metavar="LOW,HIGH",
        help="for old torch and tests: float32,float64 lets any level run where this torch cannot compute in half",
    )
    parser.add_argument(
        "--diagnose",
        action="store_const",
        const=1,
        help="say why steps are skipped, and in the end how large the gradients were",
    )
    device.add_option(parser)
    parser.add_argument("-m", nargs=argparse.REMAINDER, dest="module", help="run a module, as python -m does")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")
    return parser


def level_named(text):
    """Return an opt level that was typed, or say how they are spelled."""
    if text not in LEVELS:
        raise argparse.ArgumentTypeError(
            "{!r} is none of {}; the first character is the capital letter O, not the number zero".format(
                text, ", ".join(LEVELS)
            )
        )
    return text


def _verbosity(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError("{!r} is not a whole number from 0 up".format(text))
    return int(text)


def dtypes_named(text):
    """Return a low and a wider high dtype that were typed."""
    low, _, high = text.partition(",")
    if not 0 < BITS.get(low, 0) < BITS.get(high, 0):
        raise argparse.ArgumentTypeError("{!r} is no low and wider high dtype, such as float32,float64".format(text))
    return text


def _overrides(stated):
    return [(name, getattr(stated, name)) for name in ("opt_level", "backend", "verbosity", "dtypes", "diagnose")]


def target_of(parser, stated):
    """Return the arguments that make Python run what was asked for, or say in one line why it cannot."""
    if stated.module is not None:
        # argparse ends an option at "--"; what came after it is left in `script`.
        return ["-m"] + _checked_module(parser, stated.module + stated.script)
    target = stated.script[1:] if stated.script[:1] == ["--"] else stated.script
    if not target:
        parser.error("no script given: expected SCRIPT or -m MODULE")
    script = target[0]
    if script.startswith("-") and script != "-":
        parser.error("unknown option {!r} before the script".format(script))
    if script != "-" and not os.path.exists(script):
        parser.error("script not found: {!r}".format(script))
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        parser.error("{!r} is a directory without a __main__.py, not a script".format(script))
    _warn_of_shadow(parser, os.path.dirname(os.path.abspath(script)))
    return target


def _checked_module(parser, target):
    if not target:
        parser.error("no module given after -m")
    _warn_of_shadow(parser, os.getcwd())
    root = target[0].partition(".")[0]
    sys.path.insert(0, os.getcwd())  # where `python -m` looks first
    try:
        found = root and importlib.util.find_spec(root)
    finally:
        del sys.path[0]
    if not found:
        parser.error("no module named {!r}".format(target[0]))
    return target


def _warn_of_shadow(parser, folder):
    """Say so where Python will find another ``apex`` before ours: next to the script, which always comes first.

    And where one is installed that has nothing to do with NVIDIA's, which the script's author cannot have meant.
    """
    other, installed = shadowed_by(folder), beside.other_apex(sys.path[1:])
    if other:
        print("{}: warning: {} hides ampcompat's apex from this script".format(parser.prog, other), file=sys.stderr)
    elif installed and not beside.is_nvidias(installed):
        print("{}: note: {}".format(parser.prog, beside.about(installed)), file=sys.stderr)


def interpreter_options():
    """Return the options that this interpreter was started with, so that ``python -u -W error -m ampcompat`` counts."""
    # Private, but it is how multiprocessing starts its workers; sys.orig_argv (3.10) mixes options and arguments.
    options = subprocess._args_from_interpreter_flags()
    unbuffered = getattr(sys.stdout, "write_through", False)  # -u, which sys.flags does not record
    return (["-u"] if unbuffered else []) + options


def _become(command):
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if os.name == "nt":  # exec starts a second process there, and the caller would not wait for it
        return subprocess.call(command)
    os.execv(command[0], command)
