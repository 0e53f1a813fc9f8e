"""``check``: report whether a code base written for Apex runs unchanged, without importing it and without torch."""

import json
import os
import sys
import time

from ..static_analysis.check import check as check_paths
from ..static_analysis.check.check_text import to_text
from ..static_analysis.reading.code_files import kind
from ..support import files, terminal
from ..support.terminal import show
from .argument_parser import CommandParser

#: Bytes of the largest file that is searched, unless the user allows more: it takes about 5 s and 500 MiB.
LARGEST = 1 << 20

#: Seconds between two updates of the progress.
_INTERVAL = 0.1


def check(arguments):
    """Print a report on the files below the paths; return 0 if they run unchanged, otherwise 1."""
    parser = CommandParser(
        prog="ampcompat check",
        description="Does a code base written for Apex run unchanged? Exit code 0: yes, and nothing was found; "
        "1: errors or warnings; 2: wrong arguments.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file or folder; nothing in it is run or imported")
    parser.add_output("--json", metavar="FILE", help="write the report as JSON; `-` prints it instead of the text")
    parser.add_argument("--brief", action="store_true", help="leave out the list of every use")
    parser.add_max_size(LARGEST)
    options = parser.parse_args(arguments)
    for path in options.paths:
        if not os.path.exists(path):
            parser.error(f"no such file or folder: {path!r}")
    parser.check_outputs(options, _inputs(options))
    report = check_paths(options.paths, _progress(sys.stderr), options.max_size)
    text = json.dumps(report.as_dict(), indent=1) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
        return report.exit_code
    show(to_text(report, with_uses=not options.brief)[:-1])
    if options.json is not None:
        files.write(options.json, text)
    return report.exit_code


def _inputs(options):
    """Return the files and folders to read, and the file to write if it is read as a file of such a folder."""
    folders = [os.path.join(os.path.realpath(path), "") for path in options.paths if os.path.isdir(path)]
    written = options.json
    is_read = written and os.path.isfile(written) and os.path.realpath(written).startswith(tuple(folders))
    return options.paths + ([written] if is_read and kind(written) else [])


def _progress(stream):
    """Return a function that redraws one line with the number of files; None if the stream is not a terminal."""
    if not terminal.can_redraw(stream):
        return None
    shown = [0.0]

    def show(done, total):
        now = time.monotonic()
        if done == total or now - shown[0] >= _INTERVAL:
            shown[0] = now
            stream.write("\r\x1b[K" + (f"checking {done}/{total} files" if done < total else ""))
            stream.flush()

    return show
