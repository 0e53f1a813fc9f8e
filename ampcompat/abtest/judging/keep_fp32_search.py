"""Ranks layers by the error that they add, and searches for the smallest set to keep in float32."""

import math


def ranking(run):
    """Return the layers of a run, those with the largest errors first.

    An error is nan if a layer was never compared because its inputs were not finite; these layers come last.
    """
    ranked = sorted(run.layers, key=lambda item: math.inf if math.isnan(item[1]) else -item[1])
    return [name for name, _ in ranked]


def search(names, is_accepted):
    """Return the smallest set of names found with which a level is accepted; None if all of them are not enough.

    Bisection over the ranking finds the shortest accepted prefix, provided that longer ones are not worse; then each
    name that is not needed is left out.

    Args:
        names: layers, the one to keep in float32 first.
        is_accepted: a function: a list of names -> whether the level is accepted with these in float32. It trains.
    """
    names = list(names)
    if not is_accepted(names):
        return None
    low, high = 0, len(names)  # the first `high` are known to be accepted, the first `low` are not
    while low < high:
        middle = (low + high) // 2
        if is_accepted(names[:middle]):
            high = middle
        else:
            low = middle + 1
    kept = names[:high]
    for name in kept[:-1]:
        fewer = [each for each in kept if each != name]
        if is_accepted(fewer):
            kept = fewer
    return kept


def argument(names):
    """Return the argument to paste into ``amp.initialize``."""
    return "keep_fp32=[{}]".format(", ".join(f'"{name}"' for name in names))
