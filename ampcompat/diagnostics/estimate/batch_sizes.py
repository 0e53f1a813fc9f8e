"""The largest batch size that fits into memory, and the option of a script that sets it.

This module does not need torch.
"""

import re
from typing import NamedTuple

from ...errors import AmpError, AmpValueError
from ...observers.memory.memory_report import format_bytes
from ...static_analysis.reading.source import declared_options

_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS.update({"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40})

#: The largest batch size of the search: a script that makes its batch in a Python loop takes time per sample.
LARGEST = 1 << 11

#: An option's name: --batch-size, --train_batch_size, --batch; not those of evaluation.
_NAME = r"--(?!eval|test|val)(?:\w+[-_])*?(?:batch[-_]?size|batch)"

#: Where the peak does not grow up to this multiple of a batch size, it does not depend on the batch size.
FLAT = 64


class MemorySize(NamedTuple):
    """A size of memory, and the text by which it was given."""

    bytes: int
    text: str


def parse_size(text):
    """Return the ``MemorySize`` of a text such as "16GiB" or "40 GB".

    Raises:
        AmpValueError: it is another text.
    """
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*$", text)
    if match is None or match.group(2) not in _UNITS:
        message = "{!r} is not a size such as 16GiB, with one of the units {}."
        raise AmpValueError(message.format(text, ", ".join(_UNITS)))
    return MemorySize(int(float(match.group(1)) * _UNITS[match.group(2)]), text)


def largest_batch(peak_of, limit, precision=0.0):
    """Return the largest batch size whose peak is at most ``limit`` bytes, from 0 to ``LARGEST``.

    Peaks are assumed to grow with the batch size. They are nearly proportional to it, so only few are computed: the
    next one is where a line through two known ones meets the limit.

    Args:
        peak_of: a function: batch size -> bytes.
        precision: the result may be smaller by this share.

    Raises:
        AmpError: the peak does not grow with the batch size.
    """
    known = {}  # batch size -> bytes
    while True:
        fitting = sorted(size for size, peak in known.items() if peak <= limit)
        exceeding = min([size for size, peak in known.items() if peak > limit], default=LARGEST + 1)
        fits = fitting[-1] if fitting else 0
        if exceeding - fits <= max(1, precision * fits):
            return fits
        if fitting and known[fitting[0]] == known[fits] and fits >= FLAT * fitting[0]:
            raise AmpError(
                f"the predicted peak is {format_bytes(known[fits])} at batch sizes {fitting[0]:,} and {fits:,}: it "
                "does not grow with the batch size. Does the script use the number that it is given?"
            )
        guess = _next_guess(known, limit, fitting, exceeding)
        known[guess] = peak_of(guess)


def _next_guess(known, limit, fitting, exceeding):
    """Return a batch size between those that fit and those that do not."""
    if not fitting:
        return exceeding // 2 if exceeding <= LARGEST else 1
    fits = fitting[-1]
    if exceeding <= LARGEST:
        low, high = fits, exceeding
    elif len(fitting) > 1:
        low, high = fitting[-2:]
    else:
        return min(2 * fits, LARGEST)
    if exceeding > LARGEST and known[high] == known[low]:
        return min(LARGEST, FLAT * high)
    per_item = max((known[high] - known[low]) / (high - low), 1)
    guess = fits + int((limit - known[fits]) / per_item)
    if exceeding > LARGEST:  # beyond the limit: at least twice as far, since a small batch may not determine the peak
        return min(LARGEST, max(2 * fits, guess + 1))
    return min(exceeding - 1, max(fits + 1, guess))


def shown_batch(batch):
    """Return the largest batch size of a search as text."""
    return "none" if not batch else "{:,}{}".format(batch, " or more" if batch == LARGEST else "")


def with_batch_placeholder(command, placeholder):
    """Return (the option, the command with ``placeholder`` as its value), or (None, ``command``).

    Args:
        command: ``[script, argument, …]``, or ``["-m", module, argument, …]``.
    """
    for place, each in enumerate(command[1:], 1):
        name, equals, _ = each.partition("=")
        if re.fullmatch(_NAME, name) and equals:
            return name, command[:place] + [f"{name}={placeholder}"] + command[place + 1 :]
        if re.fullmatch(_NAME, name) and place + 1 < len(command):
            return name, command[: place + 1] + [placeholder] + command[place + 2 :]
    declared = next((option for option, _ in declared_options(command[0]) if re.fullmatch(_NAME, option)), None)
    return declared, command if declared is None else command + [declared, placeholder]
