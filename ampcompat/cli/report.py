"""``report``: shows the reports that ``ab --json`` wrote as tables, as an HTML page and as an image, without torch."""

import os
import shutil

from ..abtest.report.html import to_html
from ..abtest.report.png import save_figure
from ..abtest.report.text import to_text
from ..abtest.report_data import Report
from ..errors import AmpError
from .argument_parser import CommandParser


def report(arguments):
    """Print the tables of reports; on request write a page and an image of all of them."""
    parser = CommandParser(prog="ampcompat report", description="Show reports of `ampcompat ab --json`.")
    parser.add_argument("files", nargs="+", metavar="REPORT", help="a JSON file; several are shown side by side")
    parser.add_argument("--details", action="store_true", help="print all that is known of each level")
    parser.add_argument("--html", metavar="FILE", help="write an HTML page (needs the extra `report`)")
    parser.add_argument("--png", metavar="FILE", help="write an image (needs the extra `report`)")
    options = parser.parse_args(arguments)
    try:
        reports = [(path, _read(path)) for path in options.files]  # all of them before anything is printed or written
        _print(reports, options.details)
        if options.html:
            _write(options.html, lambda path: _write_page(_named(reports), path))
        if options.png:
            _write(options.png, lambda path: save_figure(_named(reports), path))
    except AmpError as error:
        parser.error(str(error))
    return 0


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise AmpError("cannot read {}: {}.".format(path, error.strerror)) from None
    except UnicodeDecodeError:
        raise AmpError("cannot read {}: it is not UTF-8 text.".format(path)) from None
    try:
        return Report.from_json(text)
    except AmpError as error:
        raise AmpError("{}: {}".format(path, error)) from None


def _print(reports, details):
    width = shutil.get_terminal_size((100, 24)).columns
    for index, (path, one) in enumerate(reports):
        if len(reports) > 1:
            print("{}== {} ==\n".format("\n" if index else "", path))
        print(to_text(one, min(width, 100), details))


def _write_page(reports, path):
    page = to_html(reports)
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def _named(reports):
    """Name each report by its file, with the folder only if two files have the same name."""
    short = [os.path.basename(path) for path, _ in reports]
    names = short if len(set(short)) == len(short) else [path for path, _ in reports]
    return list(zip(names, (each for _, each in reports)))


def _write(path, save):
    try:
        save(path)
    except OSError as error:
        raise AmpError("cannot write {}: {}.".format(path, error.strerror)) from None
    print("wrote {}".format(path))
