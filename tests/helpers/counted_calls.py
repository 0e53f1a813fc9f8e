"""How much work a function is, without measuring a time."""

import sys


def calls(function, *args):
    """Return how many functions, of Python and of C, are called by ``function(*args)``."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return count
