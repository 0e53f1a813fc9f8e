"""The option ``--target`` of ``ab`` and ``report``."""

import argparse

from ..abtest.judging import time_to_target
from ..errors import AmpValueError


def add_option(parser):
    """Add ``--target`` to a parser."""
    told = "measure steps and seconds until a loss or logged metric is reached; default: the baseline's final loss"
    parser.add_argument("--target", type=_target, metavar="NAME=NUMBER", help=told)


def _target(text):
    try:
        time_to_target.parse(text)
    except AmpValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
