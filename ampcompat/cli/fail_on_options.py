"""The options ``--tolerance`` and ``--fail-on`` of ``ab`` and ``report``: checks for a pipeline, with an exit code."""

import argparse
import sys

from ..abtest.judging import equivalence
from ..abtest.judging.verdict import REJECTED
from ..abtest.row_names import name_of
from ..errors import AmpValueError

#: The exit code if a row has one of the results of ``--fail-on``.
FAILED_ON = 3

#: name -> whether a row has the result, by its ``LevelSummary`` and ``Equivalence``, or None.
RESULTS = {
    "rejected": lambda row, found: row.verdict.kind == REJECTED,
    "refuted": lambda row, found: found is not None and found.result == equivalence.REFUTED,
    "not-shown": lambda row, found: found is not None and found.result == equivalence.NOT_SHOWN,
    "failed": lambda row, found: row.kind == "failed",
}


def add_options(parser):
    """Add the options to a parser."""
    tolerance = "say whether each row ends within this share of the baseline, such as 0.01: shown, refuted or not shown"
    parser.add_argument("--tolerance", type=_tolerance, metavar="SHARE", help=tolerance)
    fail = "exit code {} if a row has one of these results: {}".format(FAILED_ON, ",".join(RESULTS))
    parser.add_argument("--fail-on", type=_results, default=[], metavar="RESULT,…", help=fail)


def check(parser, options, known=()):
    """Exit with one line if ``--fail-on`` needs a tolerance that was not given and is not in the ``known`` reports."""
    needs = [name for name in options.fail_on if name in ("refuted", "not-shown")]
    has = options.tolerance is not None or (known and all("tolerance" in each.environment for each in known))
    if needs and not has:
        parser.error("--fail-on {} needs --tolerance, such as --tolerance 0.01".format(",".join(needs)))


def exit_code(program, options, report, rows):
    """Return ``FAILED_ON`` if a row has a result of ``--fail-on``, and print which; otherwise 0.

    Args:
        program: the beginning of the line on stderr.
        rows: what ``summarize(report)`` returned.
    """
    told = []
    for name in options.fail_on:
        found = [level for level, row in rows.items() if RESULTS[name](row, report.runs[level].equivalence)]
        told += ["{}: {}".format(name, ", ".join(name_of(report, level) for level in found))] if found else []
    if told:
        print("{}: --fail-on: {}".format(program, "; ".join(told)), file=sys.stderr)
    return FAILED_ON if told else 0


def _tolerance(text):
    try:
        return equivalence.parse(text)
    except AmpValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _results(text):
    found = text.split(",")
    unknown = [each for each in found if each not in RESULTS]
    if unknown:
        raise argparse.ArgumentTypeError("{!r} is not one of {}".format(unknown[0], ", ".join(RESULTS)))
    return found
