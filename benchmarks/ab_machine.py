"""On what a benchmark was measured: the line that stands below its table in RESULTS.md."""

import datetime
import os
import platform

import torch


def describe():
    """Return the date, torch's version and the CPU in one line."""
    today, threads = datetime.date.today(), torch.get_num_threads()
    return f"{today}, torch {torch.__version__}, {_cpu()}, {os.cpu_count()} cores, {threads} threads"


def _cpu():
    """Return the name of the CPU; of Linux, which knows more than ``platform`` does, its model."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
