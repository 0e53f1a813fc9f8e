"""``estimate``: predict the memory of a script's training step by running one on fake tensors.

Each prediction runs in its own process. This process does not import torch.
"""

import argparse
import functools
import sys

from ..abtest.planned_run import PlannedRun
from ..abtest.running.subprocess_supervisor import SubprocessRun
from ..errors import AmpError
from ..observers.memory.memory_report import BytesByKind, MemoryReport, MemoryUsage, format_bytes
from ..tools.estimate.batch_sizes import largest_batch, parse_size, shown_batch, with_batch_placeholder
from .argument_parser import SCRIPT_USAGE, CommandParser
from .run_command import add_script, command_uses_amp, parse_level, script_command

#: The placeholder for the batch size in the script's arguments.
PLACEHOLDER = "{batch}"

#: What the child process runs.
MODULE = "ampcompat.tools.estimate.script_child"

FAILED = 1

#: The largest batch size is searched to this share, since a prediction of a large batch takes long.
PRECISION = 0.02

#: The levels of a script that does not call ``amp.initialize``.
WITHOUT_APEX = ("O0", "O1", "O2")


class ScriptFailed(AmpError):
    """A script that ended before its step was measured; the message says why."""


def estimate(arguments):
    """Print the predictions, or the largest batch sizes; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command = script_command(parser, options, "estimated")
    has_place = any(PLACEHOLDER in each for each in command)
    if has_place and options.memory is None:
        parser.error(f"{PLACEHOLDER} stands for the batch size that is searched: give --memory")
    options.levels = options.opt_level or ([None] if command_uses_amp(command) else list(WITHOUT_APEX))
    try:
        return _print_largest(options, command) if has_place else _print_predictions(options, command)
    except AmpError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return FAILED


def _print_predictions(options, command):
    """Print a prediction for each level, and with ``--memory`` the largest batch size that fits."""
    found = []
    for level in options.levels:
        _tell(_name(level))
        found.append(predicted(command, level, options.device))
    for report in found:
        if options.memory is not None:
            fits = report.peak_total <= options.memory.bytes
            report.notes.insert(0, "It {} into {}.".format("fits" if fits else "does not fit", options.memory.text))
        print(report)
    return 0 if options.memory is None else _search(options, command)


def _search(options, command):
    """Search for the largest batch size by the script's own option, if it has one."""
    option, searched = with_batch_placeholder(command, PLACEHOLDER)
    if option is not None:
        return _print_largest(options, searched, option)
    print(
        f"To find the largest batch size that fits, write {PLACEHOLDER} in its place in the script's arguments, as "
        f"in train.py --batch-size {PLACEHOLDER}."
    )
    return 0


def _print_largest(options, command, name="batch size"):
    """Search for the largest batch size of each level, print it under a name, and return the exit code."""
    for level, size in _Batches(options, command).largest().items():
        of = "" if level == _name(None) else f" at {level}"
        print(f"The largest {name} that fits into {options.memory.text}{of}: {shown_batch(size)}")
    return 0


def _parser():
    parser = CommandParser(
        prog="ampcompat estimate",
        usage=SCRIPT_USAGE,
        description="Predict the memory of a training step of a script without its device: it runs on tensors without "
        "memory until one step is measured. Its output is not shown, since losses are made up.",
    )
    levels = "such as O0,O1,O2; default: the script's own, or these for a script without Apex"
    parser.add_argument("--opt-level", type=_levels, metavar="LEVELS", help=levels)
    memory = f"such as 16GiB: search for the largest batch size that fits, of {PLACEHOLDER} in the script's arguments"
    parser.add_argument("--memory", type=_memory, metavar="SIZE", help=memory)
    device = "the device to predict for: cuda (default), or cpu, including the memory of emulated half on this one"
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=device)
    add_script(parser)
    return parser


def _levels(text):
    return [parse_level(each) for each in text.split(",")]


def _memory(text):
    try:
        return parse_size(text)
    except AmpError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class _Batches:
    """Predicts peaks by level and batch size, and prints each to stderr."""

    def __init__(self, options, command):
        self._known = {}  # level -> {batch size: bytes}
        self._told = []  # notes on predictions
        self._limit = options.memory.bytes
        self._options, self._command = options, command
        self._levels = {_name(level): level for level in options.levels}

    def largest(self):
        """Return ``{level: the largest batch size that fits into memory}``."""
        try:
            return {
                level: largest_batch(functools.partial(self._peak_of, level), self._limit, PRECISION)
                for level in self._levels
            }
        except KeyboardInterrupt:
            for level, peaks in self._known.items():
                size = max((size for size, peak in peaks.items() if peak <= self._limit), default=None)
                _tell("{}: {}".format(level, "none fits so far" if size is None else f"{size:,} fits, or more"))
            raise

    def _peak_of(self, level, size):
        _tell(f"{level}, batch size {size:,}")
        filled = [each.replace(PLACEHOLDER, str(size)) for each in self._command]
        found = predicted(filled, self._levels[level], self._options.device)
        for note in [each for each in found.notes if each not in self._told]:
            _tell(note)
            self._told.append(note)
        peak = found.peak_total
        self._known.setdefault(level, {})[size] = peak
        _tell(f"{level}, batch size {size:,}: {format_bytes(peak)}")
        return peak


def _name(level):
    return level or "the script's level"


def _tell(text):
    print(text, file=sys.stderr, flush=True)


def predicted(command, level, counted_as):
    """Return the ``MemoryReport`` of a child process that runs a step of the script.

    Raises:
        ScriptFailed: there is no prediction. The end of the script's output has been printed.
    """
    planned = PlannedRun("estimate", command, opt_level=level, options={"counted_as": counted_as}, device="cpu")
    child, told = SubprocessRun(planned, module=MODULE), {}
    child.run_to_end(lambda event: told.update(event or {}))
    if "estimate" not in told:
        print(child.output, file=sys.stderr)
        raise ScriptFailed(child.run.error)
    facts = told["estimate"]
    usage = MemoryUsage(BytesByKind(**facts["at_peak"]), BytesByKind(**facts["peak_by_kind"]))
    return MemoryReport(facts["level"], facts["num_params"], usage, facts["notes"], predicted_for=counted_as)
