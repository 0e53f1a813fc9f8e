"""``run``: run a script in place of this process, with ampcompat's ``apex``.

The process becomes ``python script.py`` (``exec``: same process id, for launchers and signals) with additional
environment variables. So ``sys.argv``, ``__main__``, the exit code, tracebacks and worker processes are as usual.
"""

import argparse
import importlib.util
import os
import signal
import subprocess
import sys

from ..abtest.planned_run import script_file
from ..apex import nvidia_apex
from ..apex.install import interpreter_options
from ..engine.session.process_state import OBSERVED, OVERRIDES
from ..errors import AmpError
from ..static_analysis.reading.imports import uses_amp
from ..support import files, missing_cuda
from ..support.child_environment import LOCAL_RANK, ChildEnvironment, with_local_rank
from .argument_parser import CommandParser, whole_number

#: Written out so that ``run`` need not import torch; a test compares it with ``opt_levels``.
LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
BACKENDS = ("auto", "native", "patched")
BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}

#: The choices of ``run --device``.
DEVICES = ("cpu", "mps", "xpu", "xla")


def run(arguments):
    """Replace this process by the script."""
    parser = new_parser()
    options = parser.parse_args(arguments)
    command = with_local_rank(script_command(parser, options))
    if any(LOCAL_RANK in argument for argument in command):
        parser.error(f"{LOCAL_RANK} is the variable LOCAL_RANK, which is not set: start this command with torchrun.")
    if sys.flags.ignore_environment:
        parser.error("Python was started with -E or -I, which hides PYTHONPATH; use `ampcompat install`.")
    told = {name: getattr(options, name) for name in OVERRIDES + OBSERVED}
    for name in ("op_stats_file", "stats_file"):  # the script may change the folder
        told[name] = told[name] and os.path.abspath(told[name])
    if options.stats_every is not None and options.stats_file is None:
        parser.error("--stats-every needs a file to write to: --stats-file FILE.csv")
    if options.stats_every is None and options.stats_file is not None:
        parser.error("--stats-file needs --stats-every N, such as --stats-every 100")
    child = ChildEnvironment(
        device=options.device,
        forces_level=True if options.opt_level is not None else None,
        command_for_cpu=missing_cuda.command_for_cpu("run", arguments) if options.device is None else None,
        has_alias=True,
        is_uncompiled=bool(options.op_stats or options.op_stats_file),
        **told,
    )
    os.environ.update(child.to_env())
    return _exec([sys.executable] + interpreter_options() + command)


def new_parser():
    """Return the parser of the command line of ``run``."""
    parser = CommandParser(
        prog="ampcompat run",
        description="Run an unchanged script that imports apex; with --opt-level, any script that trains, at that "
        "level. Arguments after SCRIPT or MODULE are passed to it; {local_rank} in them is torchrun's LOCAL_RANK.",
    )
    add_training_options(parser)
    statistics = "print at the end how often each function of torch ran in which dtype, and why"
    parser.add_argument("--op-stats", action="store_const", const=1, help=statistics)
    parser.add_output("--op-stats-file", metavar="FILE.json", help="write this table as JSON")
    every = "write statistics of activations, gradients and weights in every N-th optimizer step"
    parser.add_argument("--stats-every", type=whole_number(1), metavar="N", help=every)
    parser.add_output("--stats-file", metavar="FILE.csv", help="the CSV file to write them to")
    add_script(parser)
    return parser


def add_script(parser):
    """Add the script or module with its arguments, after all options; those before it are the command's."""
    parser.usage = "%(prog)s [OPTION ...] SCRIPT [ARGS ...]\n       %(prog)s [OPTION ...] -m MODULE [ARGS ...]"
    parser.add_argument(
        "-m", nargs=argparse.REMAINDER, dest="module", help="MODULE [ARGS ...]: run a module, like python -m"
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="the script and its arguments")


def add_training_options(parser):
    """Add the options that change the training of a script."""
    parser.add_argument(
        "--opt-level",
        type=parse_level,
        metavar="LEVEL",
        help="O0 to O5, instead of the script's own level if it has one",
    )
    parser.add_argument(
        "--backend", choices=BACKENDS, metavar="NAME", help="cast backend of O1 and O4: auto, native or patched"
    )
    layers = "layers that stay float32, such as head,encoder.0; added to those of the script"
    parser.add_argument("--keep-fp32", type=parse_layers, metavar="LAYER,…", help=layers)
    parser.add_argument(
        "--verbosity", type=whole_number(0), metavar="N", help="what amp prints: 0 nothing, 1 what Apex does"
    )
    parser.add_argument(
        "--dtypes",
        type=parse_dtypes,
        metavar="LOW,HIGH",
        help="for torch without half kernels on a CPU: float32,float64 uses float32 in place of half",
    )
    parser.add_argument(
        "--diagnose",
        action="store_const",
        const=1,
        help="print why steps are skipped, and at the end how many passes had which cause",
    )
    parser.add_argument(
        "--store-param-remainders",
        action="store_const",
        const=1,
        help="at O5, store 16 bits per weight between steps instead of float32 master weights",
    )
    add_device(parser)


def add_device(parser):
    """Add ``--device`` to a command's parser."""
    parser.add_argument(
        "--device",
        choices=DEVICES,
        metavar="DEVICE",
        help="cpu, mps, xpu or xla: run a script written for CUDA on this device",
    )


def check_device(parser, device):
    """Exit with one line if CUDA cannot be redirected to ``device``; None is not a device."""
    if device is not None and sys.flags.no_site:
        parser.error("Python was started with -S, and --device needs the module site; leave out one of them.")
    if device not in (None, "cpu"):  # the CPU is always available; importing torch takes a second
        from ..support.torch_compat import devices, features

        if not devices.is_available(device.partition(":")[0]):
            available = ", ".join(features.available_devices())
            parser.error(f"--device {device}: not available to this torch, only {available}.")


def parse_level(text):
    """Return ``text`` if it is an opt level; otherwise raise an error for argparse."""
    if text not in LEVELS:
        meant = text.upper() if text.upper() in LEVELS else "O" + text
        hint = f"; write {meant}" if meant in LEVELS else ""
        if text.startswith("0"):
            hint = "; the first character is the capital letter O, not the number zero"
        raise argparse.ArgumentTypeError("{!r} is not one of {}{}".format(text, ", ".join(LEVELS), hint))
    return text


def parse_dtypes(text):
    """Return ``text`` if it names a low and a wider high dtype; otherwise raise an error for argparse."""
    low, _, high = text.partition(",")
    if not 0 < BITS.get(low, 0) < BITS.get(high, 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not LOW,HIGH, such as float32,float64")
    return text


def parse_layers(text):
    """Return the names in ``text``, joined by commas; also of a Python list, as `forecast` prints it."""
    inner = text[1:-1] if text[:1] + text[-1:] == "[]" else text
    names = [name.strip().strip("\"'") for name in inner.split(",")]
    if not all(names) or any(set(name) & set(" \"'") or name.count("[") != name.count("]") for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers, such as head,encoder.0")
    return ",".join(names)


def script_command(parser, options, told=None):
    """Return Python's arguments for the script or module; exit with one line if it, or the device, does not exist.

    ``told``: what is done with it that a script from stdin does not allow, for the message: "audited".
    """
    check_device(parser, getattr(options, "device", None))
    if options.module is not None:
        # argparse ends an option at "--"; the rest is in `script`.
        return ["-m"] + _checked_module(parser, options.module + options.script)
    command = options.script[1:] if options.script[:1] == ["--"] else options.script
    if not command:
        parser.error("no script given: expected SCRIPT or -m MODULE")
    script = command[0]
    if script.startswith("-") and script != "-":
        parser.error(f"unknown option {script!r} before the script")
    if script == "-" and told is not None:
        parser.error(f"a script from stdin cannot be {told}: pass a file")
    if script != "-" and not os.path.exists(script):
        parser.error(f"script not found: {script!r}")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        parser.error(f"{script!r} is a directory without a __main__.py, not a script")
    parser.check_outputs(options, [script])
    _note_misplaced_options(parser, command)
    _warn_of_other_apex(parser, os.path.dirname(os.path.abspath(script)))
    return command


def _note_misplaced_options(parser, command):
    """Say that options of this command come before the script, if one follows that the script's text does not have."""
    try:
        text = files.read(script_file(command, os.getcwd()))
    except AmpError:
        return
    given = dict.fromkeys(each.partition("=")[0] for each in parser.options_among(command[1:]))
    unknown = [each for each in given if each.startswith("--") and each != "--help" and each.encode() not in text]
    if unknown:
        told = "{}: note: the script gets {}: options of `{}` come before the script"
        print(told.format(parser.prog, ", ".join(unknown), parser.prog), file=sys.stderr, flush=True)


def command_uses_amp(command):
    """Return whether the script may call ``amp.initialize``; True for a program that is not a Python file."""
    path = script_file(command, os.getcwd())
    return not path.endswith(".py") or uses_amp(path)


def _checked_module(parser, command):
    if not command:
        parser.error("no module given after -m")
    _warn_of_other_apex(parser, os.getcwd())
    root = command[0].partition(".")[0]
    first = [os.getcwd(), nvidia_apex.SITE]  # where `python -m` searches first, and where the new process finds apex
    sys.path[:0] = first
    try:
        found = root and importlib.util.find_spec(root)
    finally:
        del sys.path[: len(first)]
    if not found:
        parser.error(f"no module named {command[0]!r}")
    return command


def _warn_of_other_apex(parser, folder):
    """Warn if there is another ``apex`` next to the script, where Python searches first.

    Also mention an installed ``apex`` that is not NVIDIA's.
    """
    other, installed = nvidia_apex.other_apex([folder]), nvidia_apex.other_apex(sys.path[1:])
    if other:
        print(f"{parser.prog}: warning: {other} hides ampcompat's apex from this script", file=sys.stderr)
    elif installed and not nvidia_apex.is_nvidia_apex(installed):
        print(f"{parser.prog}: note: {nvidia_apex.describe(installed)}", file=sys.stderr)


def _exec(command):
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if os.name != "nt":
        return os.execv(command[0], command)
    # On Windows, exec starts a second process, and the caller would not wait for it. A console sends Ctrl-C to both:
    # the script handles it, and this process waits for the script to end.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.call(command)
    finally:
        signal.signal(signal.SIGINT, before)
