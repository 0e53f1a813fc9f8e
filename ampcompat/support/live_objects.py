"""The objects of given classes that exist in the process."""

import gc
import itertools


def all_objects(*classes):
    """Return all objects of classes, and of their subclasses, that the garbage collector tracks."""
    objects = gc.get_objects()
    kinds = list(map(type, objects))  # without a Python call per object: there are many
    wanted = {kind for kind in set(kinds) if issubclass(kind, classes)}
    return list(itertools.compress(objects, map(wanted.__contains__, kinds)))
