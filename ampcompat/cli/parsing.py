"""An argument parser whose complaints are one line.

Owns: how a wrong argument looks.
Must not touch: what arguments mean.
The surprise: ``argparse`` itself prints the usage above its error; the one line is what a user has to read.
"""

import argparse

#: The exit code of a wrong command line, as everywhere in Unix and in argparse.
USAGE_ERROR = 2


class LineParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that takes no abbreviations and complains in one line."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        """Print the message on one line and exit with 2."""
        self.exit(USAGE_ERROR, "{}: error: {}\n".format(self.prog, " ".join(message.split())))
