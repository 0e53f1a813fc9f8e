"""``report``: what ``ab`` wrote as JSON, as tables, page and image again.

Owns: the command line of ``report``, and which files are read and written.
Must not touch: what tables, pages and images look like, which is ``abtest``'s.
The surprise: it needs no torch; a report of one machine is read on any other. Nothing is printed or written before
every file has been read.
"""

import os
import shutil

from ..abtest.records import Report
from ..errors import AmpError
from .parsing import LineParser


def report(arguments):
    """Print the tables of reports; on request write one page and one image of all of them."""
    parser = LineParser(prog="ampcompat report", description="Show reports of `ampcompat ab --json` again.")
    parser.add_argument("files", nargs="+", metavar="REPORT", help="a JSON file; several stand side by side")
    parser.add_argument("--html", metavar="FILE", help="write a page for the browser (needs the extra `report`)")
    parser.add_argument("--png", metavar="FILE", help="write one image for a paper (needs the extra `report`)")
    stated = parser.parse_args(arguments)
    try:
        found = [(path, _read(path)) for path in stated.files]
        _print(found)
        if stated.html:
            _write(stated.html, _page(found))
        if stated.png:
            _draw(stated.png, _named(found))
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
        raise AmpError("cannot read {}: it is no text in UTF-8.".format(path)) from None
    try:
        return Report.from_json(text)
    except AmpError as error:
        raise AmpError("{}: {}".format(path, error)) from None


def _print(found):
    width = shutil.get_terminal_size((100, 24)).columns
    for place, (path, each) in enumerate(found):
        if len(found) > 1:
            print("{}== {} ==\n".format("\n" if place else "", path))
        print(each.table(width))


def _page(found):
    from ..abtest.page import side_by_side

    return found[0][1].to_html() if len(found) == 1 else side_by_side(_named(found))


def _named(found):
    """Name each report by its file, without the folder where that is enough."""
    short = [os.path.basename(path) for path, _ in found]
    names = short if len(set(short)) == len(short) else [path for path, _ in found]
    return list(zip(names, (each for _, each in found)))


def _write(path, text):
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise AmpError("cannot write {}: {}.".format(path, error.strerror)) from None
    print("wrote {}".format(path))


def _draw(path, reports):
    from ..abtest import figures

    try:
        figures.save_side_by_side(reports, path)
    except OSError as error:
        raise AmpError("cannot write {}: {}.".format(path, error.strerror)) from None
    print("wrote {}".format(path))
