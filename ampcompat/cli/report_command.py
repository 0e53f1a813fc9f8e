"""``report``: show a report of ``ab --json`` as tables, as an HTML page and as an image, without torch."""

import os
from glob import escape, glob

from ..abtest.report.text import to_text
from ..abtest.report_data import Report
from ..abtest.running import cluster_plan
from ..errors import AmpError
from ..support import terminal
from ..support.terminal import show
from . import report_options
from .argument_parser import CommandParser


def report(arguments):
    """Print the tables of a report; on request, write a page and an image of it."""
    parser = CommandParser(prog="ampcompat report", description="Show a report of `ampcompat ab --json`.")
    parser.add_argument("report", metavar="REPORT", help="a JSON file, or a folder of `ab --plan`")
    parser.add_argument("--details", action="store_true", help="print everything that is known about each level")
    parser.add_max_size()
    report_options.add_options(parser)
    options = parser.parse_args(arguments)
    parser.check_outputs(options, _inputs(options.report))
    found, missing = _read(options)
    report_options.check(parser, options, found)
    rows = report_options.judge(options, found)
    show(to_text(found, terminal.columns(most=100), options.details, rows))
    if missing:
        show("\nMissing: {}.".format(", ".join(missing)))
    written = report_options.write_files(parser, options, found, rows)
    return written or report_options.exit_code(parser, options, found, rows)


def _inputs(path):
    """Return the files that are read: the one given, or the JSON files of a folder."""
    return glob(os.path.join(escape(path), "*.json")) if os.path.isdir(path) else [path]


def _read(options):
    """Return the report, and the names of runs that are missing in a plan."""
    if not os.path.isdir(options.report):
        return Report.load(options.report, options.max_size), []
    found, missing = cluster_plan.collect(options.report)
    if not found.runs:
        commands = os.path.join(options.report, cluster_plan.COMMANDS)
        raise AmpError(f"none of {len(missing)} runs is there yet: run {commands}")
    return found, missing
