"""Prints the results of ``ab`` when its runs have ended."""

import os
import shlex
import textwrap

from ..abtest.planned_run import own_files, script_file
from ..abtest.report.text import to_text
from ..abtest.report_data import NOTHING_TO_RECORD, label_of
from ..static_analysis.check.initialize_rules import conditional_calls_in
from ..support import missing_cuda, terminal
from ..support.terminal import show

#: How many of the files that were put back are named.
MAX_NAMED = 5


def print_report(options, report, ended, rows):
    """Print the report.

    Args:
        options: those of ``ab``.
        report: the ``Report``.
        ended: ``{(level, repeat): SubprocessRun}``, in the order in which the runs ended.
        rows: what ``summarize(report)`` returned.
    """
    failed = {}  # output -> the levels that printed it, as the keys of a dict
    for (level, _), recorded in ended.items():
        if recorded.output and recorded.run.status == "failed":
            failed.setdefault(recorded.output, {})[level] = True
    for text, levels in failed.items():
        print("--- the end of the script's output at {} ---\n{}\n".format(", ".join(levels), text))
    width = terminal.columns(least=80, most=100)
    show(to_text(report, width, options.details, rows))
    if any(run.error in NOTHING_TO_RECORD for run in report.runs.values()):
        print("\n" + _nothing_to_record(options, width))
    for line in _files(options, ended):
        print("\n" + textwrap.fill(line, width, break_long_words=False))


def _files(options, ended):
    """Return which files several runs saved, and which were put back, with the way to keep what the runs write."""
    put_back = dict.fromkeys(path for recorded in ended.values() for path in recorded.put_back)
    shared = {path: label for path, label in _shared_files(ended).items() if os.path.realpath(path) not in put_back}
    if put_back:
        names = list(map(os.path.relpath, put_back))
        names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
        told = "Runs changed {}, which existed before: put back. To keep what they write: {}."
        yield told.format(", ".join(names), own_files(options.command, list(put_back)))
    if shared:
        names = ", ".join(f"{os.path.relpath(path)} (now of {label})" for path, label in shared.items())
        told = "Several runs saved the same file: {}. To keep them apart: {}."
        yield told.format(names, own_files(options.command, list(map(os.path.abspath, shared))))


def _nothing_to_record(options, width):
    """Return a hint for a series in which there was nothing to record."""
    path = script_file(options.command, os.getcwd())
    found = conditional_calls_in(path) if path.endswith(".py") else []
    sentence = "{} calls amp.initialize only under a condition, in line {}: {}."
    told = [sentence.format(os.path.relpath(place.path), place.line, condition) for place, condition in found]
    if told:
        told.append("Give the script the option that makes it true.")
    told.append("The other levels were not run: all of them are the same training.")
    return textwrap.fill(" ".join(told), width, break_long_words=False)


def _shared_files(ended):
    """Return the files that several runs saved, as ``{path: the last run}``."""
    saved = {}
    for (level, repeat), recorded in ended.items():
        for path in recorded.run.checkpoints:
            saved.setdefault(path, []).append(label_of(level, repeat))
    return {path: labels[-1] for path, labels in saved.items() if len(labels) > 1 and os.path.exists(path)}


def advice_without_cuda(options, report, arguments):
    """Return how to run on the CPU a script that failed because the machine has no CUDA, or None."""
    if options.device is not None:
        return None
    lines = [missing_cuda.advice_after(run.traceback, "ab", arguments) for run in report.runs.values()]
    found = [line for line in lines if line is not None]
    if not found:
        return None
    import torch  # the runs were other processes

    return None if torch.cuda.is_available() else found[0]


def how_to_resume(options, arguments):
    """Return the message after Ctrl-C that gives the command which continues with the written file."""
    if options.json is None:
        return ""
    place = next(index for index, each in enumerate(arguments) if each.partition("=")[0] in ("--json", "--resume"))
    resumed = arguments[:place] + [arguments[place].replace("--json", "--resume", 1)] + arguments[place + 1 :]
    command = " ".join(map(shlex.quote, ["ampcompat", "ab"] + resumed))
    return f"continue with: {command}\n"
