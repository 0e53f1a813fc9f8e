"""``report``: show reports of ``ab --json`` as tables, as an HTML page and as an image, without torch."""

import os
import textwrap
from glob import escape, glob

from ..abtest.report.text import to_text
from ..abtest.report_data import Report
from ..abtest.row_names import noun
from ..abtest.running import cluster_plan
from ..errors import AmpError
from ..support import terminal
from ..support.terminal import show
from . import report_options
from .argument_parser import CommandParser

#: Values of a report's environment that differ in every series, or follow from other values.
OWN = ("target", "tolerance")


def report(arguments):
    """Print the tables of reports; on request, write a page and an image of all of them."""
    parser = CommandParser(prog="ampcompat report", description="Show reports of `ampcompat ab --json`.")
    parser.add_argument("files", nargs="+", metavar="REPORT", help="JSON files, or folders of `ab --plan`")
    parser.add_argument("--merge", action="store_true", help="merge reports of one series")
    parser.add_argument("--details", action="store_true", help="print everything that is known about each level")
    parser.add_max_size()
    report_options.add_options(parser)
    options = parser.parse_args(arguments)
    parser.check_outputs(options, _inputs(options.files))
    of_one = [name for name in ("json", "csv", "tensorboard") if getattr(options, name)]
    if of_one and len(options.files) > 1 and not options.merge:
        parser.error(f"--{of_one[0]} writes one report: give one, or --merge those of a series")
    try:
        reports, missing = _read(options)  # all of them before anything is printed or written
        report_options.check(parser, options, [each for _, each in reports])
        summaries = [report_options.judge(options, each) for _, each in reports]
        _print_differences(reports)
        _print(reports, summaries, options.details)
        if missing:
            show("\nMissing: {}.".format(", ".join(missing)))
    except AmpError as error:
        parser.error(str(error))
    codes = [report_options.write_files(parser, options, _named(reports), summaries)]
    codes += [report_options.exit_code(parser, options, each, rows) for (_, each), rows in zip(reports, summaries)]
    return codes[0] or max(codes)


def _inputs(paths):
    """Return the files that are read: those given, and the JSON files of folders."""
    found = [glob(os.path.join(escape(path), "*.json")) if os.path.isdir(path) else [path] for path in paths]
    return [path for each in found for path in each]


def _read(options):
    """Return ``[(path, report), …]``, and the names of runs that are missing in plans or merged reports."""
    reports, missing, largest = [], [], options.max_size
    for path in options.files:
        if os.path.isdir(path):
            report, lacking = cluster_plan.collect(path)
            if not report.runs:
                commands = os.path.join(path, cluster_plan.COMMANDS)
                raise AmpError(f"none of {len(lacking)} runs is there yet: run {commands}")
            missing += lacking
        else:
            report = Report.load(path, largest)
        reports.append((path, report))
    if options.merge:
        whole, missing = cluster_plan.merge(reports)
        reports = [(options.files[0], whole)]
    return reports, missing


def settings_of(report):
    """Return ``{name: value as text}`` of the settings that determine the runs of a report."""
    baseline = report.runs.get(report.baseline)
    identity = dict(baseline.identity) if baseline is not None else {}
    found = {name: value for name, value in report.environment.items() if name not in OWN}
    options, script = identity.pop("options", None), identity.pop("script", None)
    for values in (identity, options if isinstance(options, dict) else {}):
        found.update({name: value for name, value in values.items() if name not in found})
    found["baseline"], found[noun(report) + "s"] = report.baseline, ", ".join(report.runs)
    found["contents of the script"] = None if script is None else str(script)[:8]
    found["seeds of the baseline"] = 1 + len(baseline.repeats) if baseline is not None else None
    return {str(name): _text(value) for name, value in found.items() if value is not None}


def _text(value):
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return str(value)


def differing(reports):
    """Return ``[(name, [value in each report, or "-"]), …]`` of values that are not equal in all of ``[Report, …]``."""
    found = [settings_of(report) for report in reports]
    names = list(dict.fromkeys(name for each in found for name in each))
    rows = [(name, [each.get(name, "-") for each in found]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _print_differences(reports):
    """Print the settings, versions and arguments in which several reports differ."""
    rows = differing([each for _, each in reports])
    if len(reports) < 2:
        return
    width = terminal.columns(most=100)
    names = [name for name, _ in _named(reports)]
    show("The reports differ in:" if rows else "The reports have the same settings, versions and arguments.")
    for name, values in rows:
        told = "; ".join("{}: {}".format(*each) for each in zip(names, values))
        show(textwrap.fill(f"{name}: {told}", width, initial_indent="  ", subsequent_indent="      "))
    show()


def _print(reports, summaries, details):
    width = terminal.columns(most=100)
    for index, ((path, one), summary) in enumerate(zip(reports, summaries)):
        if len(reports) > 1:
            show("{}== {} ==\n".format("\n" if index else "", path))
        show(to_text(one, width, details, summary))


def _named(reports):
    """Name each report by its file, with the folder only if two files have the same name."""
    short = [os.path.basename(path) for path, _ in reports]
    names = short if len(set(short)) == len(short) else [path for path, _ in reports]
    return list(zip(names, (each for _, each in reports)))
