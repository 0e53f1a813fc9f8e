"""``estimate``: predict the memory of a script's training step by running one on fake tensors.

Each prediction runs in its own process. This process does not import torch.
"""

import functools
import sys

from ..abtest.planned_run import PlannedRun
from ..abtest.running.subprocess_supervisor import SubprocessRun
from ..diagnostics.estimate.batch_sizes import largest_batch, parse_size, shown_batch, with_batch_placeholder
from ..errors import AmpError
from ..observers.memory.memory_report import BytesByKind, MemoryReport, MemoryUsage, format_bytes
from .argument_parser import CommandParser, checked_by
from .run_command import add_script, command_uses_amp, parse_level, script_command

#: The placeholder for the batch size in the script's arguments.
PLACEHOLDER = "{batch}"

#: What the child process runs.
MODULE = "ampcompat.diagnostics.estimate.script_child"

#: The largest batch size is searched to this share, since a prediction of a large batch takes long.
PRECISION = 0.02

#: The levels of a script that does not call ``amp.initialize``.
WITHOUT_APEX = ("O0", "O1", "O2")


def estimate(arguments):
    """Print the predictions, or the largest batch sizes; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    command = script_command(parser, options, "estimated")
    has_place = any(PLACEHOLDER in each for each in command)
    if has_place and options.memory is None:
        parser.error(f"{PLACEHOLDER} stands for the batch size that is searched: give --memory")
    options.levels = options.opt_level or ([None] if command_uses_amp(command) else list(WITHOUT_APEX))
    if has_place:
        _print_largest(options, command)
    else:
        _print_predictions(options, command)
    return 0


def _print_predictions(options, command):
    """Print a prediction for each level, and with ``--memory`` the largest batch size that fits.

    It is searched by the script's own option, if it has one.
    """
    found = []
    for level in options.levels:
        _tell(_name(level))
        found.append(predicted(command, level, options.counted_as))
    for report in found:
        if options.memory is not None:
            fits = report.peak_total <= parse_size(options.memory).bytes
            report.notes.insert(0, "It {} into {}.".format("fits" if fits else "does not fit", options.memory))
        print(report)
    if options.memory is None:
        return
    option, searched = with_batch_placeholder(command, PLACEHOLDER)
    if option is not None:
        _print_largest(options, searched, option)
    else:
        print(
            f"To find the largest batch size that fits, write {PLACEHOLDER} in its place in the script's arguments, as "
            f"in train.py --batch-size {PLACEHOLDER}."
        )


def _print_largest(options, command, name="batch size"):
    """Search for the largest batch size of each level, and print it under a name."""
    limit, told = parse_size(options.memory).bytes, set()  # notes on predictions
    known = {level: {} for level in options.levels}  # level -> {batch size: bytes}

    def peak_of(level, size):
        _tell(f"{_name(level)}, batch size {size:,}")
        filled = [each.replace(PLACEHOLDER, str(size)) for each in command]
        found = predicted(filled, level, options.counted_as)
        for note in found.notes:
            if note not in told:
                _tell(note)
                told.add(note)
        known[level][size] = found.peak_total
        _tell(f"{_name(level)}, batch size {size:,}: {format_bytes(found.peak_total)}")
        return found.peak_total

    try:
        largest = [largest_batch(functools.partial(peak_of, level), limit, PRECISION) for level in options.levels]
    except KeyboardInterrupt:
        for level, peaks in known.items():
            size = max((size for size, peak in peaks.items() if peak <= limit), default=None)
            if peaks:
                _tell("{}: {}".format(_name(level), "none fits so far" if size is None else f"{size:,} fits, or more"))
        raise
    for level, size in zip(options.levels, largest):
        of = "" if level is None else f" at {level}"
        print(f"The largest {name} that fits into {options.memory}{of}: {shown_batch(size)}")


def _parser():
    parser = CommandParser(
        prog="ampcompat estimate",
        description="Predict the memory of a training step of a script without its device: it runs on tensors without "
        "memory until one step is measured. Its output is not shown, since losses are made up.",
    )
    levels = "such as O0,O1,O2; default: the script's own, or these for a script without Apex"
    parser.add_argument("--opt-level", type=_levels, metavar="LEVELS", help=levels)
    memory = f"such as 16GiB: search for the largest batch size that fits, of {PLACEHOLDER} in the script's arguments"
    parser.add_argument("--memory", type=checked_by(parse_size), metavar="SIZE", help=memory)
    device = "the device to predict for: cuda (default), or cpu, including the memory of emulated half on this one"
    parser.add_argument("--device", dest="counted_as", choices=("cuda", "cpu"), default="cuda", help=device)
    add_script(parser)
    return parser


def _levels(text):
    return [parse_level(each) for each in text.split(",")]


def _name(level):
    return level or "the script's level"


def _tell(text):
    print(text, file=sys.stderr, flush=True)


def predicted(command, level, counted_as):
    """Return the ``MemoryReport`` of a child process that runs a step of the script.

    Raises:
        AmpError: there is no prediction. The end of the script's output has been printed.
    """
    planned = PlannedRun("estimate", command, opt_level=level, options={"counted_as": counted_as}, device="cpu")
    child, told = SubprocessRun(planned, module=MODULE), {}
    child.run_to_end(lambda event: told.update(event or {}))
    if "estimate" not in told:
        print(child.output, file=sys.stderr)
        raise AmpError(child.run.error)
    facts = told["estimate"]
    usage = MemoryUsage(BytesByKind(**facts["at_peak"]), BytesByKind(**facts["peak_by_kind"]))
    return MemoryReport(facts["level"], facts["num_params"], usage, facts["notes"], predicted_for=counted_as)
