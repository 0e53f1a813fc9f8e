"""What the benchmarks share: options, what they ran on, rows that are printed as they are measured, and times."""

import argparse
import datetime
import os
import platform
import statistics
import time

import torch

from ampcompat import amp

#: CPU flags for half arithmetic, as torch and the operating system name them.
UNITS = ("avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "bf16", "fp16_arith", "sve_bf16")
UNITS += ("avx2", "avx512f", "amx_tile", "sve")

LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")


def options(doc, arguments=None, choices=None, **defaults):
    """Return the options of a benchmark.

    Args:
        doc: its docstring, which says what each option does.
        arguments: the command line, or None for that of the process.
        choices: option -> what it may be, a container.
        defaults: option -> its default. False makes a flag, a list an option with any number of values, and None one
            without a default.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        how = {"default": default, "choices": (choices or {}).get(name)}
        if default is False:
            how = {"action": "store_true"}
        elif isinstance(default, (list, tuple)):
            how.update(nargs="*", default=list(default), type=type(default[0]) if default else str)
        elif default is not None:
            how["type"] = type(default)
        parser.add_argument("--" + name.replace("_", "-"), **how)
    return parser.parse_args(arguments)


def machine():
    """Return the date, torch's version and the CPU in one line, as it stands below a table in RESULTS.md."""
    today, threads = datetime.date.today(), torch.get_num_threads()
    return f"{today}, torch {torch.__version__}, {_cpu()}, {os.cpu_count()} cores, {threads} threads"


def _cpu():
    """Return the name of the CPU; of Linux, which knows more than ``platform`` does, its model."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cpu_flags():
    """Return the flags of the CPU that concern half arithmetic, as Linux reports them; elsewhere as torch does."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            words = set(file.read().split())
    except OSError:
        words = {name for name, there in getattr(torch.cpu, "get_capabilities", dict)().items() if there is True}
    return sorted(words.intersection(UNITS))


def row(*cells):
    """Print a row of a table in Markdown."""
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def heading(*cells):
    """Print the first two rows of a table in Markdown."""
    row(*cells)
    print("|" + "---|" * len(cells), flush=True)


def synchronize(device):
    """Wait for a GPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def timed(function, *args, device="cpu", clock=time.perf_counter):
    """Call a function; return (what it returned, the seconds)."""
    synchronize(device)
    start = clock()
    returned = function(*args)
    synchronize(device)
    return returned, clock() - start


def seconds(function, device="cpu", clock=time.perf_counter):
    """Return the seconds of a call."""
    return timed(function, device=device, clock=clock)[1]


def interleaved(subjects, rounds, warm_up=0):
    """Return name -> a list with a measurement of each round.

    Args:
        subjects: name -> a function that measures once, or several times in a row, and returns a number. They take
            turns, so that changes of the machine's speed affect all of them.
        rounds: how many measurements are returned.
        warm_up: how many rounds before them are not.
    """
    found = {name: [] for name in subjects}
    for index in range(warm_up + rounds):
        for name, measure in subjects.items():
            value = measure()
            if index >= warm_up:
                found[name].append(value)
    return found


def ratio(mine, theirs):
    """Return the median of the ratios of two lists, round by round."""
    return statistics.median(one / other for one, other in zip(mine, theirs))


def by_amp(optimizer, loss):
    """Do a backward pass and a step, as a script for Apex does."""
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
