"""What ``ab`` and ``report`` share: the files that they write, the target, and checks for a pipeline."""

import argparse
import sys

from ..abtest.judging import time_to_target, tolerance
from ..abtest.judging.advice import advise
from ..abtest.judging.verdict import REJECTED
from ..abtest.report import charts, renderer
from ..abtest.report.html import to_html
from ..abtest.report.markup import to_latex, to_markdown
from ..errors import AmpError
from ..support import files
from ..support.terminal import show
from .argument_parser import checked_by

#: The exit codes if a file could not be written, and if a row has one of the results of ``--fail-on``.
NOT_WRITTEN, FAILED_ON = 1, 3

#: name -> whether a row has the result, by its ``LevelSummary`` and ``Equivalence``, or None.
RESULTS = {
    "rejected": lambda row, found: row.verdict.kind == REJECTED,
    "refuted": lambda row, found: found is not None and found.result == tolerance.REFUTED,
    "not-shown": lambda row, found: found is not None and found.result == tolerance.NOT_SHOWN,
    "failed": lambda row, found: row.kind == "failed",
}


def add_options(parser):
    """Add the options to a parser."""
    add, add_output = parser.add_argument, parser.add_output
    add_output("--json", metavar="FILE", help="write the report as JSON, for `ampcompat report`")
    add_output("--html", metavar="FILE", help="write an HTML page (needs the extra `report`)")
    image = "write the charts as an image (needs the extra `report`)"
    add_output("--png", check=checked_by(renderer.format_of), metavar="FILE", help=image)
    add_output("--markdown", metavar="FILE", help="write the table for a pull request")
    add_output("--latex", metavar="FILE", help="write the table for a paper")
    target = "measure steps and seconds until a loss or logged metric is reached; default: the baseline's final loss"
    add("--target", type=checked_by(time_to_target.parse), metavar="NAME=NUMBER", help=target)
    told = "say whether each row ends within this share of the baseline, such as 0.01: shown, refuted or not shown"
    add("--tolerance", type=checked_by(tolerance.parse), metavar="SHARE", help=told)
    fail = "exit code {} if a row has one of these results: {}".format(FAILED_ON, ",".join(RESULTS))
    add("--fail-on", type=_results, default=[], metavar="RESULT,…", help=fail)


def _results(text):
    found = text.split(",")
    unknown = [each for each in found if each not in RESULTS]
    if unknown:
        raise argparse.ArgumentTypeError("{!r} is not one of {}".format(unknown[0], ", ".join(RESULTS)))
    return found


def check(parser, options, known=None):
    """Exit with one line if an option needs a package, or a tolerance that the ``known`` report does not have."""
    if (options.html or options.png) and not renderer.is_installed():
        parser.error(renderer.NOT_INSTALLED)
    needs = [name for name in options.fail_on if name in ("refuted", "not-shown")]
    has = options.tolerance is not None or (known is not None and "tolerance" in known.environment)
    if needs and not has:
        parser.error("--fail-on {} needs --tolerance, such as --tolerance 0.01".format(",".join(needs)))


def judge(options, report):
    """Judge a report by the rules of this version, with the command line's target and tolerance; return its rows."""
    given = {"target": options.target, "tolerance": options.tolerance}
    report.environment.update({name: value for name, value in given.items() if value is not None})
    return advise(report)


def write_files(parser, options, report, rows):
    """Write the files that the command line requests, and say so on stderr; return the exit code.

    ``rows``: what ``judge`` returned.
    """
    drawn, code = charts.charts(report) if options.html or options.png else [], 0
    for path, write in (
        (options.json, report.save),
        (options.html, lambda path: files.write(path, to_html(report, rows, drawn))),
        (options.png, lambda path: renderer.save_figure(report, path, drawn=drawn)),
        (options.markdown, lambda path: files.write(path, to_markdown(report, rows))),
        (options.latex, lambda path: files.write(path, to_latex(report, rows))),
    ):
        if path is not None:
            try:
                write(path)
                show(f"wrote {path}", file=sys.stderr)
            except AmpError as error:
                show(f"{parser.prog}: error: {error}", file=sys.stderr)
                code = NOT_WRITTEN
    return code


def exit_code(parser, options, report, rows):
    """Return ``FAILED_ON`` if a row has a result of ``--fail-on``, and print which; otherwise 0.

    ``rows``: what ``judge`` returned.
    """
    told = []
    for name in options.fail_on:
        found = [level for level, row in rows.items() if RESULTS[name](row, report.runs[level].equivalence)]
        told += ["{}: {}".format(name, ", ".join(found))] if found else []
    if told:
        print("{}: --fail-on: {}".format(parser.prog, "; ".join(told)), file=sys.stderr)
    return FAILED_ON if told else 0
