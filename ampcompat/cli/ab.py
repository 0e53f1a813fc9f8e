"""``ab``: runs a script once per opt level and compares the levels.

Each level runs in a process of its own, so that a crash or a leak of one level does not affect the others, and Ctrl-C
keeps what was recorded. This process does not import torch.
"""

import argparse
import contextlib
import io
import os
import shlex
import shutil
import signal
import sys

from ..abtest import advice, export
from ..abtest.report import renderer
from ..abtest.report.html import to_html
from ..abtest.report.png import save_figure
from ..abtest.report.text import to_text
from ..abtest.report_data import NOTHING_TO_RECORD, Report, planned_runs
from ..errors import AmpError
from . import device_option
from .argument_parser import CommandParser, whole_number
from .find_keep_fp32 import find_in_processes
from .progress import make_progress
from .run import BACKENDS, parse_dtypes, parse_level, script_command

ALL_FAILED, INTERRUPTED = 1, 130


class Terminated(KeyboardInterrupt):
    """SIGTERM, which a scheduler sends; handled as Ctrl-C, so that the child process ends and the report is written."""


def ab(arguments):
    """Run the levels, print the report, and return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command = _checked_command(parser, options)
    environment = {"script": " ".join(map(shlex.quote, command)), "seed": options.seed, "diagnose": options.diagnose}
    environment.update({"dtypes": options.dtypes} if options.dtypes else {})
    environment.update({"cuda_redirected_to": options.device} if options.device else {})
    report = Report(environment=environment, baseline=options.baseline)
    progress = make_progress(steps=options.steps, runs=len(_runs(options)))
    run_levels = _run_in_process if options.in_process else _run_in_subprocesses
    outputs, interrupted = {}, None
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        run_levels(options, command, report, progress, outputs)
    except KeyboardInterrupt as error:
        interrupted = 128 + signal.SIGTERM if isinstance(error, Terminated) else INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    advice.advise(report)
    _print(options, report, outputs)
    if options.find_keep_fp32 and interrupted is None:
        print("\n" + find_in_processes(report, options, command, _run_options(options), progress))
    try:
        _write(options, report)
    except (AmpError, OSError) as error:  # the report is printed by now: hours of training are not lost
        print("{}: error: {}".format(parser.prog, error), file=sys.stderr)
        return ALL_FAILED
    if interrupted is not None:
        return interrupted
    return ALL_FAILED if all(run.status == "failed" for run in report.runs.values()) else 0


# -- the command line --------------------------------------------------------------------------------------------------


def _parser():
    parser = CommandParser(
        prog="ampcompat ab",
        usage="%(prog)s [-h] [--levels O0,O1,…] [--baseline LEVEL] [--steps N] [--repeats K] [--no-control] [--seed S] "
        "[--details] [--layers] [--find-keep-fp32 LEVEL] [--json FILE] [--html FILE] [--png FILE] [--csv FILE] "
        "[--tensorboard DIR] [--timeout SECONDS] [--in-process] [--launcher COMMAND] [--no-diagnose] [--no-memory] "
        "[--verbose] [--backend NAME] [--dtypes LOW,HIGH] [--device DEVICE] (SCRIPT | -m MODULE) [ARGS ...]",
        description="Run an unchanged script once per opt level and compare the levels. What follows SCRIPT or MODULE "
        "are its arguments.",
    )
    add = parser.add_argument
    add("--levels", type=_levels, default=["O0", "O1", "O2", "O3"], metavar="O0,O1,…", help="default: O0,O1,O2,O3")
    add("--baseline", type=parse_level, default="O0", metavar="LEVEL", help="compare the others with it; default: O0")
    add("--steps", type=whole_number(1), metavar="N", help="end each run after so many optimizer steps")
    add("--repeats", type=whole_number(1), default=1, metavar="K", help="runs per level, each with other seeds")
    control = "do not train the baseline with a second seed: faster, but no level is judged"
    add("--no-control", dest="control", action="store_false", help=control)
    add("--details", action="store_true", help="print all that is known: scales, memory by kind, overflows")
    seed = "seed of Python, NumPy and torch; default: 0"
    add("--seed", type=whole_number(0, 2**32 - 1), default=0, metavar="S", help=seed)
    _add_output_options(add)
    add("--layers", action="store_true", help="compare each layer with float32, on the same weights and inputs")
    search = "search the layers that must stay float32 for this level to be accepted; trains several times"
    add("--find-keep-fp32", type=parse_level, metavar="LEVEL", help=search)
    add("--timeout", type=float, metavar="SECONDS", help="end a run that takes longer")
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


def _add_output_options(add):
    add("--json", type=_writable_file, metavar="FILE", help="write the report, for `ampcompat report`")
    add("--html", type=_writable_file, metavar="FILE", help="write the report as an HTML page")
    add("--png", type=_writable_file, metavar="FILE", help="write the charts as an image")
    add("--csv", type=_writable_file, metavar="FILE", help="write losses and metrics, one row per value")
    add("--tensorboard", metavar="DIR", help="write losses and metrics for TensorBoard, one folder per run")


def _levels(text):
    found = [parse_level(level) for level in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError("{!r} names a level twice".format(text))
    return found


def _writable_file(text):
    folder = os.path.dirname(os.path.abspath(text))
    if os.path.isdir(text) or not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError("cannot write {!r}: the folder does not exist or is not writable".format(text))
    return text


def _checked_command(parser, options):
    """Check the options and return the script to run with its arguments; exit with one line if something is wrong."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error(
            "ab starts the processes itself: run it without the launcher, with --launcher "
            "'torchrun --nproc_per_node {}'".format(os.environ["WORLD_SIZE"])
        )
    if options.in_process and (options.launcher or options.timeout is not None):
        parser.error("--in-process cannot be combined with --launcher or --timeout: there is no other process")
    if (options.html or options.png) and not renderer.is_installed():
        parser.error(renderer.NOT_INSTALLED)
    if options.tensorboard and not export.has_tensorboard():
        parser.error(export.NO_TENSORBOARD)
    if sys.flags.ignore_environment:
        parser.error("Python was started with -E or -I, which hides PYTHONPATH from the script")
    if options.find_keep_fp32:
        if options.in_process or not options.control:
            parser.error("--find-keep-fp32 needs processes and the control: leave out --in-process and --no-control")
        options.layers = True
        options.levels = [options.baseline, options.find_keep_fp32]
    command = script_command(parser, options)
    if command[0] == "-":
        parser.error("a script from stdin cannot be run once per level: pass a file")
    if options.in_process and options.device is not None:
        parser.error("--device cannot be combined with --in-process: it applies to processes that are started")
    device_option.apply_option(parser, options.device)
    if options.baseline not in options.levels:
        options.levels.insert(0, options.baseline)
    return command


def _raise_terminated(number, frame):
    raise Terminated


# -- the runs ----------------------------------------------------------------------------------------------------------


def _run_in_subprocesses(options, command, report, progress, outputs):
    from .subprocess_run import ChildTask, SubprocessRun

    for level, repeat in _runs(options):
        task = ChildTask(command, level, options.seed, repeat, options.steps, _run_options(options))
        child = SubprocessRun(task, options.launcher, options.timeout, options.verbose)
        report.add(level, repeat, child.run)
        progress.begin(_label(level, repeat))
        try:
            child.run_to_end(progress.update)
        finally:
            progress.end(child.run)
            report.environment.update(child.environment)
            outputs[level, repeat] = child.output
        _write_json(options, report)
        if child.run.error in NOTHING_TO_RECORD:
            break


def _run_in_process(options, command, report, progress, outputs):
    from ..abtest.comparison import RunOptions, run_levels
    from ..apex import install
    from . import child_process

    printed = io.StringIO()
    current = []

    def on_event(level, repeat, event):
        if current != [level, repeat]:
            current[:] = level, repeat
            progress.begin(_label(level, repeat))
        progress.update(event)
        if "end" in event:
            progress.end(report.run_of(level, repeat))
            outputs[level, repeat] = "\n".join(filter(None, [printed.getvalue().strip(), event.get("traceback")]))
            printed.seek(0)
            printed.truncate()

    def train(level):
        child_process.run_script(command)

    run_options = RunOptions(hidden_files=child_process.HIDDEN_FILES + (__file__,), **_run_options(options))
    quiet = contextlib.nullcontext() if options.verbose else contextlib.redirect_stdout(printed)
    install.install()
    try:
        with quiet:
            run_levels(report, train, _runs(options), options.steps, options.seed, run_options, on_event)
    finally:
        install.uninstall()


def _run_options(options):
    """Return the keyword arguments of ``comparison.RunOptions``."""
    # What amp prints is in the report; of a script that fails, its own output and traceback are shown.
    verbosity = None if options.verbose else 0
    names = ("backend", "dtypes", "diagnose", "memory", "layers")
    return dict({name: getattr(options, name) for name in names}, verbosity=verbosity)


def _runs(options):
    return planned_runs(options.levels, options.baseline, options.repeats, options.control)


def _label(level, repeat):
    return level if repeat == 0 else "{} seed {}".format(level, repeat + 1)


# -- output ------------------------------------------------------------------------------------------------------------


def _print(options, report, outputs):
    failed = {}  # output -> the levels that printed it
    for (level, repeat), text in outputs.items():
        if text and report.run_of(level, repeat).status == "failed":
            failed.setdefault(text, []).append(level)
    for text, levels in failed.items():
        print("--- the end of what the script printed at {} ---\n{}\n".format(", ".join(levels), text))
    width = shutil.get_terminal_size((100, 24)).columns
    print(to_text(report, min(100, max(80, width)), options.details))
    nothing = [run.error for run in report.runs.values() if run.error in NOTHING_TO_RECORD]
    if nothing:
        print("The other levels were not run: {}.".format(nothing[0]))


def _write(options, report):
    _write_json(options, report)
    if options.html is not None:
        _write_atomically(options.html, to_html(report))
    if options.png is not None:
        save_figure(report, options.png)
    if options.csv is not None:
        _write_atomically(options.csv, export.to_csv(report))
    if options.tensorboard is not None:
        export.to_tensorboard(report, options.tensorboard)


def _write_json(options, report):
    if options.json is not None:
        _write_atomically(options.json, report.to_json())


def _write_atomically(path, text):
    """Write a file completely or not at all."""
    partial = "{}.{}.part".format(path, os.getpid())
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(partial, path)
