"""``report``: show reports of ``ab --json`` as tables, as an HTML page and as an image, without torch."""

import functools
import os
import textwrap
from glob import escape, glob

from ..abtest.judging.advice import advise
from ..abtest.judging.summary import summarize
from ..abtest.report import build_charts
from ..abtest.report.html import to_html
from ..abtest.report.markup import to_latex, to_markdown
from ..abtest.report.renderer import save_figure
from ..abtest.report.text import to_text
from ..abtest.report_data import Report
from ..abtest.row_names import noun
from ..abtest.running import cluster_plan
from ..errors import AmpError
from ..support import files, terminal
from ..support.terminal import show
from . import fail_on_options, target_option
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
    parser.add_output("--json", metavar="FILE", help="write the report again, merged and judged by this version")
    parser.add_output("--html", metavar="FILE", help="write an HTML page (needs the extra `report`)")
    parser.add_output("--png", metavar="FILE", help="write an image (needs the extra `report`)")
    parser.add_output("--markdown", metavar="FILE", help="write the tables for a pull request")
    parser.add_output("--latex", metavar="FILE", help="write the tables for a paper")
    target_option.add_option(parser)
    fail_on_options.add_options(parser)
    options = parser.parse_args(arguments)
    parser.check_outputs(options, _inputs(options.files))
    if options.json and len(options.files) > 1 and not options.merge:
        parser.error("--json writes one report: give one, or --merge those of a series")
    try:
        reports, missing = _read(options)  # all of them before anything is printed or written
        fail_on_options.check(parser, options, [each for _, each in reports])
        for _, each in reports:
            gate = {"target": options.target, "tolerance": options.tolerance}
            each.environment.update({name: value for name, value in gate.items() if value is not None})
            advise(each)  # by the rules of this version, even if another wrote the file
        summaries = [summarize(each) for _, each in reports]  # these take seconds for long runs
        _print_differences(reports)
        _print(reports, summaries, options.details)
        if missing:
            show("\nMissing: {}.".format(", ".join(missing)))
        _write_files(options, reports, summaries)
    except AmpError as error:
        parser.error(str(error))
    found = zip(reports, summaries)
    return max(fail_on_options.exit_code(parser.prog, options, each, rows) for (_, each), rows in found)


def _write_files(options, reports, summaries):
    named = _named(reports)
    drawn = build_charts.charts(named) if options.html or options.png else []
    if options.json:
        _write(options.json, reports[0][1].save)
    if options.html:
        _write(options.html, lambda path: files.write(path, to_html(named, summaries, drawn)))
    for path, render in ((options.markdown, to_markdown), (options.latex, to_latex)):
        if path:
            text = "\n".join(render(each, rows) for (_, each), rows in zip(reports, summaries))
            _write(path, functools.partial(files.write, content=text))
    if options.png:
        _write(options.png, lambda path: save_figure(named, path, drawn=drawn))


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


def _write(path, save):
    save(path)
    show(f"wrote {path}")
