"""An argument parser that reports errors in one line."""

import argparse

#: The exit code of a wrong command line, as in argparse.
USAGE_ERROR = 2


class LineParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` without abbreviations that prints errors in one line, without the usage."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        """Print the message on one line and exit with 2."""
        self.exit(USAGE_ERROR, "{}: error: {}\n".format(self.prog, " ".join(message.split())))
