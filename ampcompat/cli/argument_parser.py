"""An argument parser that reports errors in one line, and the types of arguments."""

import argparse
import contextlib
import difflib
import os

from ..errors import AmpError
from ..support import files
from ..support.terminal import printable

#: The exit code of a wrong command line, as in argparse.
USAGE_ERROR = 2


class CommandParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` without abbreviations that prints errors in one line, without the usage."""

    def __init__(self, **options):
        self._names = set()  # of the options
        self._option_of = {}  # name in the parsed options -> option
        self._outputs = []  # names in the parsed options
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names, **options):
        """Add an argument as ``ArgumentParser`` does; return its action."""
        action = super().add_argument(*names, **options)
        self._names.update(action.option_strings)
        self._option_of[action.dest] = action.option_strings[-1] if action.option_strings else action.dest
        return action

    def add_output(self, *names, check=None, **options):
        """Add an option for a file to write; ``check`` is called with its name, and may raise errors for argparse."""

        def checked(text):
            if check is not None:
                check(text)
            return output_file(text)

        action = self.add_argument(*names, type=checked, **options)
        self._outputs.append(action.dest)

    def add_max_size(self, default=files.LARGEST):
        """Add the option for the size of the largest file that is read, given in MiB; its value is in bytes."""
        text = "the largest file that is read, decompressed; default: %(default)s"
        self.add_argument("--max-size", type=mebibytes, default=files.in_mebibytes(default), metavar="MIB", help=text)

    def check_outputs(self, options, inputs):
        """Exit with one line if a file to write is one of ``inputs``, or is given twice."""
        read, written = {os.path.realpath(path) for path in inputs}, {}
        for name in self._outputs:
            path = getattr(options, name)
            if path in (None, "-"):
                continue
            real, option = os.path.realpath(path), self._option_of[name]
            if real in read:
                self.error(f"{option} {path}: the command reads this file; give another name")
            if written.setdefault(real, option) != option:
                self.error(f"{option} {path}: {written[real]} writes this file; give another name")

    def parse_args(self, args=None, namespace=None):
        """Parse as ``ArgumentParser`` does; the error for an unknown option suggests one with a similar name."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            alike = difflib.get_close_matches(unknown[0].partition("=")[0], self._names, 1)
            hint = f"; did you mean {alike[0]}?" if alike else ""
            self.error("unrecognized arguments: {}{}".format(" ".join(unknown), hint))
        return options

    def error(self, message):
        """Print the message on one line and exit with 2."""
        self.exit(USAGE_ERROR, "{}: error: {}\n".format(self.prog, printable(" ".join(message.split()))))

    def check_exclusions(self, options, exclusions):
        """Exit with one line if mutually exclusive options were given.

        Args:
            options: the parsed options; an option counts as given if its value is not the default.
            exclusions: (an option, others that it excludes, separated by spaces, why), by their names in ``options``.
        """
        given = {name for name in self._option_of if getattr(options, name, None) != self.get_default(name)}
        for name, others, why in exclusions:
            excluded = [self._option_of[each] for each in others.split() if each in given]
            if name in given and excluded:
                self.error("{} cannot be combined with {}: {}".format(self._option_of[name], ", ".join(excluded), why))

    def options_among(self, arguments):
        """Return those of ``arguments`` that are options of this parser."""
        return [each for each in arguments if each.partition("=")[0] in self._names]


def output_file(text):
    """Return the name of a file that can be written, or "-"; otherwise raise an error for argparse."""
    folder = os.path.dirname(os.path.abspath(text))
    if text != "-" and not files.is_stream(text) and (os.path.isdir(text) or not os.access(folder, os.W_OK)):
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: the folder does not exist or is not writable")
    return text


def checked_by(parse):
    """Return a type for ``add_argument``: texts for which ``parse`` raises no ``AmpError``."""

    def checked(text):
        try:
            parse(text)
        except AmpError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return checked


def mebibytes(text):
    """Return the bytes of a number of MiB, which may be a fraction; otherwise raise an error for argparse."""
    with contextlib.suppress(ValueError, OverflowError):
        if 1 <= float(text) * (1 << 20) <= 1 << 40:
            return int(float(text) * (1 << 20))
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of MiB, above 0 and up to {1 << 20}")


def whole_number(minimum, maximum=None):
    """Return a type for ``add_argument``: whole numbers from ``minimum`` to ``maximum``, or without upper limit."""
    limits = f"from {minimum} up" if maximum is None else f"from {minimum} to {maximum}"

    def parse(text):
        if not text.isdigit() or int(text) < minimum or (maximum is not None and int(text) > maximum):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limits}")
        return int(text)

    return parse
