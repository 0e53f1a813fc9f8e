"""Formats losses, shares, bytes and times for people; an unknown value is a dash, never 0."""

import math

UNKNOWN = "-"


def number(value):
    """Return a loss: four significant digits, or nan and inf as such."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return repr(value)
    return "{:.4g}".format(value) if value == 0 or 1e-4 <= abs(value) < 1e5 else "{:.2e}".format(value)


def percent(share):
    """Return a share in percent: two significant digits where it is small."""
    if share is None:
        return UNKNOWN
    if not math.isfinite(share):
        return repr(share)
    hundredths = 100.0 * share
    if hundredths == 0:
        return "0 %"
    return "{:.0f} %".format(hundredths) if hundredths >= 10 else "{:.2g} %".format(hundredths)


def size(count):
    """Return bytes in a unit that keeps the number short."""
    if count is None:
        return UNKNOWN
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1000:
            break
        value, unit = value / 1024, "GiB"
    return "{:.0f} {}".format(value, unit) if abs(value) >= 100 or unit == "B" else "{:.3g} {}".format(value, unit)


def scale(value):
    """Return a loss scale: without decimals where it is whole."""
    if value is None:
        return UNKNOWN
    return "{:g}".format(value) if value < 1e6 else "2^{:g}".format(math.log2(value))


def duration(seconds):
    """Return seconds as 0:07, 12:30 or 1:02:03."""
    minutes, seconds = divmod(int(round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return "{}:{:02d}:{:02d}".format(hours, minutes, seconds) if hours else "{}:{:02d}".format(minutes, seconds)
