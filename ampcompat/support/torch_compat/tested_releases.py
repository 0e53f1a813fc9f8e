"""The releases of torch that the test suite passes on."""

from . import features

#: The minor versions of torch that the test suite passes on, oldest first: docs/machine.md.
TESTED = (
    *"1.3 1.4 1.5 1.6 1.7 1.8 1.9 1.10 1.11 1.12 1.13".split(),
    *"2.0 2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 2.9 2.10 2.11 2.12 2.13 2.14 2.15".split(),
)


def untested():
    """Return the message for a torch of an untested minor version, which names the nearest tested ones, or None."""
    older = [each for each in TESTED if features.is_version_within(oldest=each)]
    newer = [each for each in TESTED if features.is_version_within(newest=each)]
    if set(older) & set(newer):
        return None
    return "torch {} is not tested; nearest tested: {}".format(features.version(), " and ".join(older[-1:] + newer[:1]))
