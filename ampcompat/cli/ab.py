"""``ab``: runs a script once per opt level and compares the levels.

Each level runs in a process of its own, so that a crash or a leak of one level does not affect the others, and Ctrl-C
keeps what was recorded. This process does not import torch.
"""

import argparse
import os
import shlex
import shutil
import sys
import warnings
import zipfile

from ..abtest.judging import advice
from ..abtest.judging.summary import summarize
from ..abtest.planned_run import PLACEHOLDER, script_file
from ..abtest.report import export, renderer
from ..abtest.report.text import to_text
from ..abtest.running.cluster_plan import COMMANDS, write_plan
from ..abtest.running.subprocess_parent import exit_code, sigterm_as_interrupt
from ..errors import AmpError
from ..tools.check.amp_use import uses_amp
from . import device_option, gate_options, target_option
from .ab_output import advice_without_cuda, how_to_resume, print_report, print_search, write_files
from .ab_runs import begin_or_resume, count_short_runs, plan_series, run_in_process, run_in_subprocesses
from .argument_parser import SCRIPT_USAGE, CommandParser, whole_number
from .first_difference import compare_step
from .forecast import STEPS, agreement, print_forecast, run_forecast
from .live import follow
from .progress import make_progress
from .run import BACKENDS, parse_dtypes, parse_level, script_command
from .variants import choose_rows, parse_against, parse_variant

ALL_FAILED = 1


def ab(arguments):
    """Run the levels, print the report, and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command = options.command = _checked_command(parser, options)
    planned = plan_series(options, command)
    try:
        report, missing = begin_or_resume(options, command, planned)
    except AmpError as error:
        parser.error(str(error))
    if options.first_difference:
        return _first_difference(parser, options, report, planned)
    if options.plan:
        return _plan(parser, options.plan, report, planned)
    kept = len(planned) - len(missing)
    if kept:
        print(f"{options.resume}: {kept} of {len(planned)} runs kept", file=sys.stderr)
    forecast = _forecast(options, command) if options.forecast else None
    runs = len(planned) + count_short_runs(options, report)
    progress = make_progress(steps=options.steps, runs=runs, kept=kept)
    live = follow(progress, report, planned) if options.live else None
    progress, outputs = live or progress, {}
    try:
        run = run_in_process if options.in_process else run_in_subprocesses
        interrupted = _interruptible(run, options, missing, report, progress, outputs)
    except AmpError as error:
        parser.error(str(error))
    gate = {"target": options.target, "tolerance": options.tolerance}
    report.environment.update({name: value for name, value in gate.items() if value is not None})
    advice.advise(report)
    if live is not None:
        live.close()
    print_report(options, report, outputs)
    if forecast is not None:
        print("\n" + agreement(forecast, report))
    if options.find_keep_fp32 and interrupted is None:
        interrupted = _interruptible(print_search, report, options, planned, progress)
    try:
        for path in write_files(options, report):
            print(f"wrote {path}", file=sys.stderr)
    except (AmpError, OSError) as error:  # the report is printed by now: hours of training are not lost
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return ALL_FAILED
    if interrupted is not None:
        print(how_to_resume(options, arguments), end="", file=sys.stderr)
        return interrupted
    failed_on = gate_options.exit_code(parser.prog, options, report, summarize(report))
    if not all(run.status == "failed" for run in report.runs.values()):
        return failed_on
    line = advice_without_cuda(options, report, arguments)
    if line is not None:
        print(line, file=sys.stderr)
    misplaced = parser.options_among(command[1:])
    if misplaced:
        print("\nThe script was given {}: options of `ab` come before the script.".format(", ".join(misplaced)))
    return failed_on or ALL_FAILED


# -- the command line --------------------------------------------------------------------------------------------------


def _parser():
    parser = CommandParser(
        prog="ampcompat ab",
        usage=SCRIPT_USAGE,
        description="Run an unchanged script once per opt level and compare the levels. What follows SCRIPT or MODULE "
        "are its arguments.",
    )
    add = parser.add_argument
    _add_row_options(add)
    add("--steps", type=whole_number(1), metavar="N", help="end each run after so many optimizer steps")
    add("--repeats", type=whole_number(1), default=1, metavar="K", help="runs per level, each with other seeds")
    control = "do not train the baseline with a second seed: faster, but no level is judged"
    add("--no-control", dest="control", action="store_false", help=control)
    add("--details", action="store_true", help="print all that is known: scales, memory by kind, overflows")
    seed = "seed of Python, NumPy and torch; default: 0"
    add("--seed", type=whole_number(0, 2**32 - 1), default=0, metavar="S", help=seed)
    _add_output_options(add)
    target_option.add_option(parser)
    gate_options.add_options(parser)
    told = "first forecast which levels will work, from 50 steps in float32, and say in the end whether that was right"
    add("--forecast", action="store_true", help=told)
    add("--layers", action="store_true", help="compare each layer with float32, on the same weights and inputs")
    search = "search the layers that must stay float32 for this level to be accepted; trains several times"
    add("--find-keep-fp32", type=parse_level, metavar="LEVEL", help=search)
    first = "compare one step with the baseline's op by op, and train nothing: which op is the first to be wrong?"
    add("--first-difference", metavar="LEVEL", help=first + " A level, or the name of a variant")
    add("--timeout", type=float, metavar="SECONDS", help="end a run that takes longer")
    _add_process_options(add)
    add("--in-process", action="store_true", help="run all levels in this process; modules are imported once")
    launcher = "such as 'torchrun --nproc_per_node 2'; rank 0 is recorded"
    add("--launcher", type=shlex.split, default=[], metavar="COMMAND", help=launcher)
    add("--no-diagnose", dest="diagnose", action="store_false", help="do not explain skipped steps, for exact times")
    add("--no-memory", dest="memory", action="store_false", help="do not measure memory")
    add("--verbose", action="store_true", help="print the script's output")
    add("--backend", choices=BACKENDS, metavar="NAME", help="what casts: auto, native or patched")
    add("--dtypes", type=parse_dtypes, metavar="LOW,HIGH", help="replace the dtypes, such as by float32,float64")
    device_option.add_option(parser)
    add("-m", nargs=argparse.REMAINDER, dest="module", help="run a module, as python -m does")
    add("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")
    return parser


def _add_process_options(add):
    add("--jobs", type=whole_number(1), metavar="N", help="runs at once, each with its share of the cores; default: 1")
    gpus = "numbers of GPUs, such as 0,1,2,3: each run gets one, as many run at once"
    add("--gpus", type=_numbers, default=[], metavar="0,1,…", help=gpus)
    timing = "steps of a short run of each level, for its speed; 0: times are those of the long runs; default: 20"
    add("--timing-steps", type=whole_number(0), default=20, metavar="N", help=timing)
    rounds = "rounds in which all levels take turns with a short run; more give narrower intervals; default: 3"
    add("--timing-rounds", type=whole_number(1), default=3, metavar="N", help=rounds)


def _numbers(text):
    found = text.split(",")
    if len(set(found)) < len(found) or not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different GPUs, such as 0,1")
    return found


def _add_row_options(add):
    levels = "default: O0,O1,O2,O3; with --variant none"
    add("--levels", type=_levels, metavar="O0,O1,…", help=levels)
    baseline = (
        "a level or variant to compare the others with, or none: the script unchanged; default: O0 of a script that "
        "calls amp.initialize, else none"
    )
    add("--baseline", metavar="NAME", help=baseline)
    variant = (
        "a row of its own, with options of `run`, name=value of amp.initialize, VARIABLE=value, python=PATH or "
        "script=FILE"
    )
    add("--variant", dest="variants", action="append", type=parse_variant, metavar="'NAME: OPTIONS'", help=variant)
    against = "compare the script with its rewritten form, which runs without ampcompat's apex"
    add("--against", type=parse_against, metavar="FILE", help=against)


def _add_output_options(add):
    add("--json", type=_writable_file, metavar="FILE", help="write the report, for `ampcompat report`")
    add("--html", type=_writable_file, metavar="FILE", help="write the report as an HTML page")
    add("--live", action="store_true", help="serve the page on 127.0.0.1 while runs go on; it grows with them")
    add("--png", type=_image_file, metavar="FILE", help="write the charts as an image")
    add("--markdown", type=_writable_file, metavar="FILE", help="write the table for a pull request")
    add("--latex", type=_writable_file, metavar="FILE", help="write the table for a paper")
    resume = "as --json; runs that the file has already are kept, and the others are run"
    add("--resume", type=_writable_file, metavar="FILE", help=resume)
    planned = "run nothing: write a command for each run into DIR/commands.txt; then `ampcompat report DIR`"
    add("--plan", metavar="DIR", help=planned)
    add("--csv", type=_writable_file, metavar="FILE", help="write losses and metrics, one row per value")
    add("--tensorboard", metavar="DIR", help="write losses and metrics for TensorBoard, one folder per run")


def _forecast(options, command):
    """Forecast the levels and print what is foreseen; None where that is not possible, which is said too."""
    wanted = argparse.Namespace(
        steps=min(STEPS, options.steps or STEPS), seed=options.seed, device=options.device, verbose=options.verbose
    )
    try:
        found = run_forecast(wanted, command, make_progress(steps=wanted.steps))
    except AmpError as error:  # the levels may run all the same
        print(f"No forecast: {error}\n", file=sys.stderr)
        return None
    print_forecast(found, command, options.details)
    print()
    return found


def _first_difference(parser, options, report, planned):
    """Compare one step, print and write what was found, and return the exit code: 0 where nothing is claimed."""
    progress = make_progress(steps=options.steps, runs=2)
    try:
        interrupted = _interruptible(compare_step, options, report, planned, progress)
        if interrupted is not None:
            return interrupted
        print(to_text(report, min(100, max(80, shutil.get_terminal_size((100, 24)).columns))))
        for path in write_files(options, report):
            print(f"wrote {path}", file=sys.stderr)
    except (AmpError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return ALL_FAILED
    return 0


def _plan(parser, folder, report, planned):
    try:
        write_plan(folder, report, planned)
    except OSError as error:
        parser.error(f"cannot write {folder}: {error.strerror}.")
    path = os.path.join(folder, COMMANDS)
    print(f"wrote {len(planned)} commands to {path}; afterwards: ampcompat report {folder}")
    return 0


def _levels(text):
    found = [parse_level(level) for level in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} names a level twice")
    return found


def _writable_file(text):
    folder = os.path.dirname(os.path.abspath(text))
    if os.path.isdir(text) or not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: the folder does not exist or is not writable")
    return text


def _image_file(text):
    try:
        renderer.format_of(text)
    except AmpError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return _writable_file(text)


def _interruptible(function, *args):
    """Call a function that does runs; return the exit code if it was interrupted, otherwise None."""
    try:
        with sigterm_as_interrupt():
            function(*args)
    except KeyboardInterrupt as error:
        return exit_code(error)
    return None


def _checked_command(parser, options):
    """Check the options and return the script to run with its arguments; exit with one line if something is wrong."""
    _check_combinations(parser, options)
    if options.first_difference:
        _check_first_difference(parser, options)
    gate_options.check(parser, options)
    variants = ([options.against] if options.against else []) + (options.variants or [])
    command = script_command(parser, options)
    if command[0] == "-":
        parser.error("a script from stdin cannot be run once per level: pass a file")
    try:
        has_amp = options.in_process or _uses_amp(command)
        options.rows, options.baseline = choose_rows(options.levels, variants, options.baseline, command, has_amp)
    except (ValueError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    if not any("python" in row for row in options.rows.values()):  # which may know other syntax
        _check_syntax(parser, command[0])
    if options.in_process and any(PLACEHOLDER in each for each in command[1:]):
        parser.error(f"{PLACEHOLDER} in the script's arguments needs a process per run: leave out --in-process")
    if options.in_process and options.device is not None:
        parser.error("--device cannot be combined with --in-process: it applies to processes that are started")
    device_option.check_option(parser, options.device)
    return command


def _uses_amp(command):
    """Return whether the script may call ``amp.initialize``; for a program that is no Python file this is assumed."""
    path = script_file(command, os.getcwd())
    return not path.endswith(".py") or uses_amp(path)


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


def _check_first_difference(parser, options):
    """Check what ``--first-difference`` is combined with, and choose the rows."""
    name = options.first_difference
    others = "in_process plan resume live find_keep_fp32 forecast levels png csv tensorboard markdown latex launcher"
    given = ["--" + each.replace("_", "-") for each in others.split() if getattr(options, each)]
    if given:
        parser.error("--first-difference compares one step, and trains nothing: leave out {}".format(", ".join(given)))
    variants = [each for each, _ in ([options.against] if options.against else []) + (options.variants or [])]
    if name not in variants:
        try:
            options.levels = [parse_level(name)]
        except argparse.ArgumentTypeError as error:
            names = ", nor a variant: {}".format(", ".join(variants)) if variants else ""
            parser.error(f"--first-difference: {error}{names}")
    if name == options.baseline or (name == "O0" and options.baseline is None):
        parser.error(f"--first-difference {name}: {name} is the baseline; name what to compare with it")
    options.control = False


def _check_combinations(parser, options):
    """Check options that exclude or need each other, and set those that follow from others."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error(
            "ab starts the processes itself: run it without the launcher, with --launcher "
            "'torchrun --nproc_per_node {}'".format(os.environ["WORLD_SIZE"])
        )
    given = ("launcher", "timeout", "variants", "against", "resume", "jobs", "gpus")
    if options.in_process and any(getattr(options, name) for name in given):
        named = ", ".join("--" + name for name in given).replace("variants", "variant")
        parser.error(f"--in-process cannot be combined with {named}: there is no other process")
    outputs = (
        "resume",
        "json",
        "html",
        "png",
        "markdown",
        "latex",
        "csv",
        "tensorboard",
        "find_keep_fp32",
        "in_process",
    )
    if options.plan and any(getattr(options, name) for name in outputs):
        parser.error("--plan runs nothing, so that there is nothing to write yet: `ampcompat report DIR` does that")
    if options.resume and options.json not in (None, options.resume):
        parser.error("--resume is --json as well: leave out --json")
    options.json = options.resume or options.json
    options.jobs = options.jobs or len(options.gpus) or 1
    if options.gpus and options.jobs > len(options.gpus):
        parser.error(f"--jobs {options.jobs}: more than the {len(options.gpus)} of --gpus")
    if (options.html or options.png or options.live) and not renderer.is_installed():
        parser.error(renderer.NOT_INSTALLED)
    if options.tensorboard and not export.has_tensorboard():
        parser.error(export.NO_TENSORBOARD)
    if sys.flags.ignore_environment:
        parser.error("Python was started with -E or -I, which hides PYTHONPATH from the script")
    if options.find_keep_fp32:
        if options.in_process or not options.control:
            parser.error("--find-keep-fp32 needs processes and the control: leave out --in-process and --no-control")
        options.layers = True
        if options.variants or options.against:
            parser.error("--find-keep-fp32 searches a level: leave out --variant and --against")
        options.levels = [options.find_keep_fp32]
