"""The options of ``ab``, which of them exclude each other, and the checks before anything runs."""

import argparse
import os
import shlex
import sys
import time
import warnings
import zipfile

from packaging.version import Version

from ..abtest.report import renderer
from ..support.child_environment import LOCAL_RANK
from . import report_options
from .ab_variants import choose_rows, parse_against, parse_variant
from .argument_parser import CommandParser, output_file, whole_number
from .run_command import (
    BACKENDS,
    add_device,
    add_script,
    command_uses_amp,
    parse_dtypes,
    parse_level,
    script_command,
)

#: Options that exclude others: the option, the others, and why, by their names in the parsed options.
EXCLUSIONS = (
    (
        "plan",
        "resume json html png markdown latex find_keep_fp32",
        "it runs nothing, so there is nothing to write yet: `ampcompat report DIR` does that afterwards",
    ),
    ("find_keep_fp32", "control", "it requires the variation between the baseline's seeds"),
    ("find_keep_fp32", "variants against", "it searches for the layers of one level"),
)


def new_parser():
    """Return the parser of the command line of ``ab``."""
    parser = CommandParser(
        prog="ampcompat ab",
        description="Run an unchanged script once per opt level and compare the levels. Arguments after SCRIPT or "
        "MODULE are passed to it.",
    )
    add = parser.add_argument
    _add_row_options(add)
    add(
        "--steps",
        type=whole_number(1),
        metavar="N",
        help="end each run after N optimizer steps; default: the whole training",
    )
    repeats = "runs per level, each with a different seed; default: 1, and a second one of the baseline"
    add("--repeats", type=whole_number(1), default=1, metavar="K", help=repeats)
    control = "do not train the baseline with a second seed: faster, but no level is judged"
    add("--no-control", dest="control", action="store_false", help=control)
    add("--details", action="store_true", help="print everything: loss scales, memory by kind, overflows")
    seed = "seed of Python, NumPy and torch; default: 0"
    add("--seed", type=whole_number(0, 2**32 - 1), default=0, metavar="S", help=seed)
    report_options.add_options(parser)
    _add_series_options(add)
    search = "search for the layers that must stay float32 for this level to be accepted; trains several times"
    add("--find-keep-fp32", type=parse_level, metavar="LEVEL", help=search)
    add("--dry-run", action="store_true", help="print what would be run, and run nothing")
    add("--timeout", type=float, metavar="SECONDS", help="end a run that takes longer")
    _add_timing_options(add)
    launcher = "such as 'torchrun --nproc_per_node 2'; rank 0 is recorded"
    add("--launcher", type=shlex.split, default=[], metavar="COMMAND", help=launcher)
    add("--no-diagnose", dest="diagnose", action="store_false", help="do not explain skipped steps, for exact times")
    add("--no-memory", dest="memory", action="store_false", help="do not measure memory")
    add("--verbose", action="store_true", help="print the script's output")
    add("--backend", choices=BACKENDS, metavar="NAME", help="cast backend: auto, native or patched")
    add("--dtypes", type=parse_dtypes, metavar="LOW,HIGH", help="replace the dtypes, for example by float32,float64")
    add_device(parser)
    add_script(parser)
    return parser


def _add_timing_options(add):
    timing = "steps of each level's short run, which measures its speed; 0: use the times of the long runs; default: 20"
    add("--timing-steps", type=whole_number(0), default=20, metavar="N", help=timing)
    rounds = (
        "rounds in which all levels take turns in a short run; default: 3, 2 if a run trains for less time than it "
    )
    rounds += "takes to start, none where half precision is emulated"
    add("--timing-rounds", type=whole_number(1), metavar="N", help=rounds)


def _add_row_options(add):
    levels = "the levels to run; default: O0,O1,O2,O3, or none beside --variant"
    add("--levels", type=_levels, metavar="O0,O1,…", help=levels)
    baseline = (
        "the level or variant that the others are compared with, or unchanged: the script as it is; default: O0 for a "
        "script that calls amp.initialize, else unchanged"
    )
    add("--baseline", metavar="NAME", help=baseline)
    variant = (
        "an additional row, with options of `run`, name=value of amp.initialize, VARIABLE=value, python=PATH or "
        "script=FILE"
    )
    add("--variant", dest="variants", action="append", type=parse_variant, metavar="'NAME: OPTIONS'", help=variant)
    against = "compare the script with its rewritten form, which runs without ampcompat's apex"
    add("--against", type=parse_against, metavar="FILE", help=against)


def _add_series_options(add):
    add("--live", action="store_true", help="serve the page on 127.0.0.1 during the runs; it grows with them")
    resume = "like --json; runs that the file already has are kept, and the others are run"
    add("--resume", type=output_file, metavar="FILE", help=resume)
    planned = "run nothing: write a command for each run to DIR/commands.txt; then `ampcompat report DIR`"
    add("--plan", metavar="DIR", help=planned)


def _levels(text):
    found = [parse_level(level) for level in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} contains a level twice")
    return found


def checked_command(parser, options):
    """Check the options and return the script to run with its arguments; exit with one line if something is wrong."""
    _check_environment(parser)
    parser.check_exclusions(options, EXCLUSIONS)
    _check_outputs(parser, options)
    if options.find_keep_fp32:
        _check_forecast(parser)
        options.levels = [options.find_keep_fp32]
    report_options.check(parser, options)
    variants = ([options.against] if options.against else []) + (options.variants or [])
    command = script_command(parser, options, "run once per level")
    if not options.launcher and any(LOCAL_RANK in argument for argument in command):
        parser.error(f"{LOCAL_RANK} is torchrun's LOCAL_RANK: add --launcher 'torchrun --nproc_per_node N'")
    try:
        has_amp = command_uses_amp(command)
        options.rows, options.baseline = choose_rows(options.levels, variants, options.baseline, command, has_amp)
    except (ValueError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    parser.check_outputs(options, [row["script"] for row in options.rows.values() if "script" in row])
    if not any("python" in row for row in options.rows.values()):  # which may support other syntax
        _check_syntax(parser, command[0])
    options.since = time.time()
    return command


def _check_syntax(parser, path):
    """Exit with Python's message if a script cannot be compiled: no level would run."""
    if not os.path.isfile(path) or zipfile.is_zipfile(path):
        return
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(file.read(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        told = "{}, line {}: {}: {}: {}".format(path, error.lineno, type(error).__name__, error.msg, error.text or "")
        parser.error(told.rstrip().rstrip(":"))


def _check_environment(parser):
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error(
            "ab starts the processes itself: run it without the launcher, with --launcher "
            "'torchrun --nproc_per_node {}'".format(os.environ["WORLD_SIZE"])
        )
    if sys.flags.ignore_environment:
        parser.error("Python was started with -E or -I, which hides PYTHONPATH from the script")


def _check_forecast(parser):
    """Exit if the installed torch, which is not imported here, is too old for the forecast that begins a search."""
    told = "--find-keep-fp32 starts from a forecast, which needs torch 2.1 or newer; this is {}"
    if sys.version_info < (3, 8):  # without ``importlib.metadata``
        parser.error(told.format("Python 3.7, for which there is none"))
    from importlib import metadata

    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:  # not installed as a package: the forecast itself says what is wrong
        return
    if Version(version).release < (2, 1):
        parser.error(told.format(version))


def _check_outputs(parser, options):
    """Check that ``--live`` can show something; ``--resume`` is ``--json`` too."""
    if options.resume and options.json not in (None, options.resume):
        parser.error("--resume writes the report too: leave out --json")
    options.json = options.resume or options.json
    if options.live and not renderer.is_installed():
        parser.error(renderer.NOT_INSTALLED)
