"""``ab``: run a script once per opt level and show how the levels differ.

Owns: the command line of ``ab``, the order of runs, what is printed and written, exit codes.
Must not touch: what is measured and judged, which is ``abtest``'s; the script's output, but to show it on failure.
The surprise: this process loads no torch. Each level is a fresh one, so that a crash or a leak of one level is its
own, and Ctrl-C here still finds everything that was measured.
"""

import argparse
import contextlib
import importlib.util
import io
import os
import shlex
import shutil
import signal
import sys

from ..abtest import advisor
from ..abtest.figures import MISSING
from ..abtest.records import Report
from ..errors import AmpError
from . import device
from .parsing import LineParser
from .progress import make_progress
from .run import BACKENDS, dtypes_named, level_named, target_of

ALL_FAILED, INTERRUPTED = 1, 130


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a scheduler sends it when time is over: to be met as Ctrl-C is, and not by leaving the child alone."""


def ab(arguments):
    """Run the levels, print the report, and return the exit code."""
    parser = _parser()
    stated = parser.parse_args(arguments)
    target = _checked(parser, stated)
    told = {"script": " ".join(map(shlex.quote, target)), "seed": stated.seed, "diagnose": stated.diagnoses}
    told.update({"dtypes": stated.dtypes} if stated.dtypes else {})
    told.update({"cuda_redirected_to": stated.device} if stated.device else {})
    report = Report(environment=told, baseline=stated.baseline)
    progress = make_progress(steps=stated.steps)
    run_levels = _run_here if stated.in_process else _run_fresh
    outputs, interrupted = {}, None
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        run_levels(stated, target, report, progress, outputs)
    except KeyboardInterrupt as error:
        interrupted = 128 + signal.SIGTERM if isinstance(error, Terminated) else INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    advisor.judge(report)
    _print(report, outputs)
    try:
        _write(stated, report)
    except (AmpError, OSError) as error:  # after hours of training what was measured is printed already
        print("{}: error: {}".format(parser.prog, error), file=sys.stderr)
        return ALL_FAILED
    if interrupted is not None:
        return interrupted
    return ALL_FAILED if all(run.status == "failed" for run in report.runs.values()) else 0


# -- the command line --------------------------------------------------------------------------------------------------


def _parser():
    parser = LineParser(
        prog="ampcompat ab",
        usage="%(prog)s [-h] [--levels O0,O1,…] [--baseline LEVEL] [--steps N] [--repeats K] [--seed S] [--json FILE] "
        "[--html FILE] [--png FILE] [--timeout SECONDS] [--in-process] [--launcher COMMAND] [--no-diagnose] "
        "[--no-memory] [--verbose] [--backend NAME] [--dtypes LOW,HIGH] [--device DEVICE] (SCRIPT | -m MODULE) [ARGS ...]",
        description="Run an unchanged script once per opt level and show how the levels differ. What follows SCRIPT or "
        "MODULE belongs to it.",
    )
    add = parser.add_argument
    add("--levels", type=_levels, default=["O0", "O1", "O2", "O3"], metavar="O0,O1,…", help="default: O0,O1,O2,O3")
    add("--baseline", type=level_named, default="O0", metavar="LEVEL", help="what the others are compared with: O0")
    add("--steps", type=_count, metavar="N", help="end each run after so many optimizer steps")
    add("--repeats", type=_count, default=1, metavar="K", help="runs per level; from 2 on, noise is measured")
    add("--seed", type=_seed, default=0, metavar="S", help="of Python, NumPy and torch: 0")
    add("--json", type=_file, metavar="FILE", help="write the report, for `ampcompat report`")
    add("--html", type=_file, metavar="FILE", help="write the report as a page")
    add("--png", type=_file, metavar="FILE", help="draw the report")
    add("--timeout", type=float, metavar="SECONDS", help="end a run that takes longer")
    add("--in-process", action="store_true", help="run all levels in this process; modules are imported once")
    launcher = "such as 'torchrun --nproc_per_node 2'; rank 0 is recorded"
    add("--launcher", type=shlex.split, default=[], metavar="COMMAND", help=launcher)
    add("--no-diagnose", dest="diagnoses", action="store_false", help="do not explain skipped steps, for exacter times")
    add("--no-memory", dest="measures_memory", action="store_false", help="do not measure memory")
    add("--verbose", action="store_true", help="let the script's output through")
    add("--backend", choices=BACKENDS, metavar="NAME", help="who casts: auto, native or patched")
    add("--dtypes", type=dtypes_named, metavar="LOW,HIGH", help="for old torch: float32,float64 stand in for half")
    device.add_option(parser)
    add("-m", nargs=argparse.REMAINDER, dest="module", help="run a module, as python -m does")
    add("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")
    return parser


def _levels(text):
    found = [level_named(level) for level in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError("{!r} names a level twice".format(text))
    return found


def _count(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("{!r} is not a whole number from 1 up".format(text))
    return int(text)


def _seed(text):
    if not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError("{!r} is not a whole number from 0 to 2**32 - 1".format(text))
    return int(text)


def _file(text):
    folder = os.path.dirname(os.path.abspath(text))
    if os.path.isdir(text) or not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError("cannot write {!r}: no such folder, or no right to".format(text))
    return text


def _checked(parser, stated):
    """Return the script to run and its arguments, or say in one line why there is nothing to be run."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error(
            "ab starts the processes itself: leave the launcher away here and give it as --launcher "
            "'torchrun --nproc_per_node {}'".format(os.environ["WORLD_SIZE"])
        )
    if stated.in_process and (stated.launcher or stated.timeout is not None):
        parser.error("--in-process goes without --launcher and --timeout: there is no other process")
    if (stated.html or stated.png) and importlib.util.find_spec("matplotlib") is None:
        parser.error(MISSING)
    if sys.flags.ignore_environment:
        parser.error("Python was started with -E or -I, which hides PYTHONPATH from the script")
    target = target_of(parser, stated)
    if target[0] == "-":
        parser.error("a script from stdin cannot be run once per level: give a file")
    if stated.in_process and stated.device is not None:
        parser.error("--device reaches a process as it starts, so it goes without --in-process")
    device.put_in_force(parser, stated.device)
    if stated.baseline not in stated.levels:
        stated.levels.insert(0, stated.baseline)
    return target


def _leave(number, frame):
    raise Terminated


# -- the runs ----------------------------------------------------------------------------------------------------------


def _run_fresh(stated, target, report, progress, outputs):
    from .fresh import FreshRun, Start

    for level in stated.levels:
        for repeat in range(stated.repeats):
            start = Start(target, level, stated.seed, repeat, stated.steps, *_wishes(stated))
            fresh = FreshRun(start, stated.launcher, stated.timeout, stated.verbose)
            report.keep(level, repeat, fresh.run)
            progress.begin(_label(level, repeat, stated.repeats))
            try:
                fresh.follow(progress.hear)
            finally:
                progress.end(fresh.run)
                report.environment.update(fresh.environment)
                outputs[level, repeat] = fresh.output
            _write_json(stated, report)


def _run_here(stated, target, report, progress, outputs):
    from ..abtest.comparison import Wishes, measure
    from ..apex import install
    from . import child

    printed = io.StringIO()
    current = []

    def tell(level, repeat, event):
        if current != [level, repeat]:
            current[:] = level, repeat
            progress.begin(_label(level, repeat, stated.repeats))
        progress.hear(event)
        if "end" in event:
            progress.end(report.run_of(level, repeat))
            outputs[level, repeat] = "\n".join(filter(None, [printed.getvalue().strip(), event.get("traceback")]))
            printed.seek(0)
            printed.truncate()

    wishes = Wishes(*_wishes(stated), frames=child.FRAMES + (__file__,))
    quiet = contextlib.nullcontext() if stated.verbose else contextlib.redirect_stdout(printed)
    install.install()
    try:
        with quiet:
            measure(
                report,
                lambda level: child.run_target(target),
                stated.levels,
                stated.steps,
                stated.repeats,
                stated.seed,
                wishes,
                tell,
            )
    finally:
        install.uninstall()


def _wishes(stated):
    # What amp itself would print is in the report; of a script that fails its own words and traceback are wanted.
    verbosity = None if stated.verbose else 0
    return stated.backend, stated.dtypes, verbosity, stated.diagnoses, stated.measures_memory


def _label(level, repeat, repeats):
    return level if repeats == 1 else "{} {}/{}".format(level, repeat + 1, repeats)


# -- what comes of it --------------------------------------------------------------------------------------------------


def _print(report, outputs):
    failed = {}  # what was printed -> the levels that it is of
    for (level, repeat), text in outputs.items():
        if text and report.run_of(level, repeat).status == "failed":
            failed.setdefault(text, []).append(level)
    for text, levels in failed.items():
        print("--- the end of what the script printed at {} ---\n{}\n".format(", ".join(levels), text))
    width = shutil.get_terminal_size((100, 24)).columns
    print(report.table(min(120, max(80, width))))


def _write(stated, report):
    _write_json(stated, report)
    if stated.html is not None:
        _replace(stated.html, report.to_html())
    if stated.png is not None:
        report.plot(stated.png)


def _write_json(stated, report):
    if stated.json is not None:
        _replace(stated.json, report.to_json())


def _replace(path, text):
    """Write a file as a whole or not at all."""
    beside = "{}.{}.part".format(path, os.getpid())
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(beside, path)
