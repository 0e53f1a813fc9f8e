"""Formats losses, shares, bytes and times for display; an unknown value is a dash, never 0."""

import functools
import math

UNKNOWN = "-"

#: Larger shares are not shown: if a level has diverged, the digits are meaningless.
LARGEST_SHARE = 10.0


def _of_known(function):
    """Make a function of a number return a dash for None."""
    return functools.wraps(function)(lambda value, *more: UNKNOWN if value is None else function(value, *more))


@_of_known
def number(value, digits=4):
    """Return a loss: four significant digits, or nan and inf as such; an exponent only if it replaces zeros."""
    if not math.isfinite(value):
        return repr(value)
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.2e}"
    told = "{:.{}g}".format(value, digits)
    return told if "e" not in told else f"{value:.0f}"


@_of_known
def percent(share):
    """Return a share in percent: two significant digits if it is small."""
    if not math.isfinite(share):
        return repr(share)
    hundredths = 100.0 * min(share, LARGEST_SHARE)
    if hundredths == 0:
        return "0 %"
    told = f"{hundredths:.0f} %" if abs(hundredths) >= 10 else f"{hundredths:.2g} %"
    return ">" + told if share > LARGEST_SHARE else told


@_of_known
def share(value):
    """Return a share in percent, with one decimal; what is neither 0 nor all is never shown as such."""
    told = f"{100 * value:.1f}"
    if told == "100.0" and value < 1:
        return "over 99.9 %"
    return "under 0.1 %" if told == "0.0" and value > 0 else told.replace(".0", "") + " %"


@_of_known
def signed_percent(share):
    """Return a difference as a signed share."""
    told = ("+" if share > 0 else "\u2212" if share < 0 else "") + percent(abs(share)).lstrip(">")
    return (">" if share > LARGEST_SHARE else "") + told


@_of_known
def size(count):
    """Return bytes in a unit that keeps the number short."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1000:
            break
        value, unit = value / 1024, "GiB"
    return f"{value:.0f} {unit}" if abs(value) >= 100 or unit == "B" else f"{value:.3g} {unit}"


@_of_known
def scale(value):
    """Return a loss scale: without decimals if it is whole."""
    return f"{value:g}" if value < 1e6 else f"2^{math.log2(value):g}"


@_of_known
def milliseconds(seconds):
    """Return seconds in milliseconds, with three digits."""
    return number(seconds * 1e3, 3)


def seconds(value):
    """Return seconds with three digits; from 100 on as 12:30 or 1:02:03."""
    return f"{number(value, 3)} s" if value < 100 else duration(value)


def duration(seconds):
    """Return seconds as 0:07, 12:30 or 1:02:03."""
    minutes, seconds = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
