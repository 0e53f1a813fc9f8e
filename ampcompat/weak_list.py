"""``WeakList``, a list of weak references that is safe to iterate while another thread changes it."""

import weakref


class WeakList:
    """Holds objects weakly, in the order in which they were added; an object that dies is removed.

    ``weakref.WeakSet`` raises an error if one thread changes it while another iterates over it.
    """

    def __init__(self):
        self._items = weakref.WeakValueDictionary()  # id -> the object

    def add(self, item):
        """Append ``item``, unless it is in the list."""
        self._items[id(item)] = item

    def discard(self, item):
        """Remove ``item`` if it is in the list."""
        if self._items.get(id(item)) is item:
            self._items.pop(id(item), None)

    def __iter__(self):
        return iter([item for item in [reference() for reference in self._items.valuerefs()] if item is not None])

    def __len__(self):
        return len(self._items)
