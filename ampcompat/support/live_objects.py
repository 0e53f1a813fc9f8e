"""The objects of given classes that exist in the process, and lists and keys that keep no object alive."""

import functools
import gc
import operator
import weakref
from itertools import chain, compress, repeat, starmap

_REFERENT, _IS_ALIVE = weakref.ref.__call__, functools.partial(operator.is_not, None)


def all_objects(*classes):
    """Return all objects of classes, and of their subclasses, that the garbage collector tracks.

    One call of C lists all objects, looks through them and lets go of them: another thread may be building a tuple
    meanwhile, which Python cannot finish while something else refers to it.
    """
    objects = []
    is_wanted = map(issubclass, map(type, objects), repeat(classes))
    collect, release = map(objects.extend, starmap(gc.get_objects, [()])), starmap(objects.clear, [()])
    return list(chain(collect, compress(objects, is_wanted), release))[1:-1]  # the ends are what the two return


def live_keys(dictionary):
    """Return the keys of a ``weakref.WeakKeyDictionary`` that are alive, as a list.

    Iterating over the dictionary itself raises an error if another thread changes it meanwhile.
    """
    return list(filter(_IS_ALIVE, map(_REFERENT, dictionary.keyrefs())))


def live_items(dictionary):
    """Return the items of a ``weakref.WeakKeyDictionary`` whose keys are alive, as a list; no value may be None."""
    items = [(key, dictionary.get(key)) for key in live_keys(dictionary)]
    return [(key, value) for key, value in items if value is not None]  # else removed meanwhile


class WeakList:
    """Weak references to objects, in the order in which they were added; an object that is freed is removed.

    ``weakref.WeakSet`` raises an error if one thread changes it while another iterates over it.
    """

    def __init__(self):
        self._references = {}  # id -> reference to the object

    def add(self, item):
        """Append ``item``, unless it is in the list."""
        references, key = self._references, id(item)

        def forget(reference):
            if references.get(key) is reference:
                del references[key]

        if key not in references:
            references[key] = weakref.ref(item, forget)

    def discard(self, item):
        """Remove ``item`` if it is in the list."""
        self._references.pop(id(item), None)

    def __contains__(self, item):
        reference = self._references.get(id(item))
        return reference is not None and reference() is item

    def __iter__(self):
        return filter(_IS_ALIVE, map(_REFERENT, list(self._references.values())))

    def __len__(self):
        return len(self._references)
