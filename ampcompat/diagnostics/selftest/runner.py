"""The self-test: its checks in order, the environment, and its report as text and as JSON."""

import collections
import contextlib
import json
import os
import platform
import textwrap
import time
import warnings

import torch

from ... import __version__
from ...engine.casting import emulated_half_arithmetic
from ...engine.session import process_state
from ...errors import AmpError
from ...support.torch_compat import devices, features
from ...support.torch_compat.torch_names import dtype_name
from .conformance import check_casts
from .results import FAILED, MEASURED, NOT_RUN, OK, CheckResult
from .training import REPORT, check_overflow, check_parity, first_line

#: (name, device and quick -> rows)
CHECKS = (
    ("environment", lambda device, quick: check_version()),
    ("conformance", check_casts),
    ("training", check_parity),
    ("overflow", check_overflow),
)
COLUMNS = "{:11}  {:26}  {:8}  {}"


def run(device, quick=False, write=print, width=120):
    """Run every check on a device, write each row as it is found, and return the report as a dict.

    Args:
        device: "cpu", "cuda", "cuda:1", …
        quick: a shorter run.
        write: a function that gets a line of text.
        width: the maximum width of a line.

    Returns:
        ``{"environment": {name: text}, "rows": [{…}], "counts": {status: number}, "seconds": float, …}``, for JSON.

    Raises:
        AmpError: a session is open.
    """
    if process_state.current() is not None:
        raise AmpError("The self-test needs torch without casts. Call ampcompat.reset() before it.")
    start, rows = time.time(), []
    facts = environment(device)
    for name, value in facts.items():
        for index, line in enumerate(textwrap.wrap(value, max(width - 34, 30))):
            write("{:31}{} {}".format("" if index else name, " " if index else ":", line))
    write("")
    write(COLUMNS.format("check", "case", "result", "found"))
    for name, check in CHECKS:
        for row in _rows_of(name, check, device, quick):
            rows.append(row)
            write_row(row, write, width)
    seconds = time.time() - start
    counts = collections.Counter(row.status for row in rows)
    write("")
    write(_summary(counts, seconds))
    return {
        "schema": 1,
        "device": device,
        "quick": quick,
        "environment": facts,
        "rows": [dict(row._asdict(), figures=dict(row.figures)) for row in rows],
        "counts": dict(counts),
        "seconds": round(seconds, 1),
    }


def _rows_of(name, check, device, quick):
    """Yield the rows of a check; an exception is a failed row, and the other checks still run."""
    try:
        with devices.eagerly(device.partition(":")[0]):  # nothing is the same twice, which graphs are compiled for
            yield from check(device, quick)
    except Exception as error:  # the user wants the rest of the table, including this error
        if process_state.current() is not None:
            with contextlib.suppress(Exception):
                process_state.close_all()
        text = f"{type(error).__name__}: {first_line(error)}"
        yield CheckResult(name, "all", FAILED, text, REPORT)


def write_row(row, write, width):
    """Write a row of the table, followed by what to do if it failed."""
    lines = textwrap.wrap(row.found, max(width - 51, 30)) or [""]
    if row.status == FAILED and row.advice:
        lines += textwrap.wrap("What to do: " + row.advice, max(width - 51, 30))
    status = row.status.upper() if row.status == FAILED else row.status
    write(COLUMNS.format(row.check, row.case, status, lines[0]))
    for line in lines[1:]:
        write(COLUMNS.format("", "", "", line))


def _summary(counts, seconds):
    parts = [f"{counts[status]} {status}" for status in (OK, FAILED, NOT_RUN, MEASURED) if counts[status]]
    verdict = "Some checks FAILED" if counts[FAILED] else "No check failed"
    return "{}: {} ({:.0f} s)".format(verdict, ", ".join(parts), seconds)


def to_json(report):
    """Return a report as JSON text."""
    return json.dumps(report, indent=1, default=str) + "\n"


def environment(device):
    """Return the facts that a report needs, by name.

    Args:
        device: "cpu", "cuda", "cuda:1", …
    """
    facts = {
        "ampcompat": __version__,
        "torch": features.version(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "device": device,
    }
    if device.startswith("cuda"):
        facts.update(_cuda(device))
    if device == "cpu":
        for low in (torch.float16, torch.bfloat16):
            facts[f"{dtype_name(low)} on this CPU"] = emulated_half_arithmetic.describe(low)
    for name in sorted(os.environ):
        if name.startswith("AMPCOMPAT_"):
            facts[name] = os.environ[name]
    return facts


def _cuda(device):
    properties = torch.cuda.get_device_properties(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch >= 2.9 recommends other names
        libraries = (getattr(torch.backends.cuda, "matmul", None), torch.backends.cudnn)  # torch 1.6 lacks the first
        flags = [getattr(each, "allow_tf32", False) for each in libraries]
    return [
        ("GPU", f"{properties.name}, {properties.total_memory / 1e9:.0f} GB"),
        ("compute capability", f"{properties.major}.{properties.minor}"),
        ("CUDA", str(torch.version.cuda or getattr(torch.version, "hip", None))),
        ("cuDNN", str(torch.backends.cudnn.version())),
        ("TF32 in products, convolutions", ", ".join("on" if flag else "off" for flag in flags)),
    ]


def check_version():
    """Yield a row: whether the test suite covers this torch. An untested one is not a failure."""
    untested = features.untested()
    tested = f"torch {features.version()} is tested"
    yield CheckResult("environment", "torch", MEASURED if untested else OK, untested or tested)
