"""Whether casts are in force in this thread.

Owns: ``Switch``.
Must not touch: torch.
The surprise: ``local.off`` is a class attribute that a thread shadows while it pauses, so that one attribute read answers
for the process and for the thread, and closing the backend reaches threads that never heard of it.
"""

import threading


class Switch:
    """On or off for the process, and off for a while in one thread."""

    def __init__(self):
        # A class of its own for each switch: the process-wide answer is the class attribute.
        self._everywhere = type("Local", (threading.local,), {"off": True, "depth": 0})
        self.local = self._everywhere()

    def turn_on(self):
        """Put casts in force in every thread that does not pause them."""
        self._everywhere.off = False

    def turn_off(self):
        """Take casts out of force in every thread."""
        self._everywhere.off = True

    def pause(self):
        """Turn casts off in this thread until the matching ``resume``."""
        self.local.depth += 1
        self.local.off = True

    def resume(self):
        """End the newest ``pause`` of this thread."""
        self.local.depth -= 1
        if not self.local.depth:
            del self.local.off

    @property
    def is_paused(self):
        """Whether this thread has paused casts."""
        return self.local.depth > 0


class Paused:
    """Context manager: casts off in this thread. Written as a class because it is entered at every backward."""

    __slots__ = ("_switch",)

    def __init__(self, switch):
        self._switch = switch

    def __enter__(self):
        self._switch.pause()

    def __exit__(self, *exc_info):
        self._switch.resume()


class Unpaused:
    """Context manager: this thread's pauses suspended, for code that must see the casts of an earlier moment."""

    __slots__ = ("_switch", "_depth")

    def __init__(self, switch):
        self._switch = switch

    def __enter__(self):
        local = self._switch.local
        self._depth = local.depth
        if self._depth:
            local.depth = 0
            del local.off

    def __exit__(self, *exc_info):
        local = self._switch.local
        local.depth += self._depth
        if local.depth:
            local.off = True


class Nothing:
    """Context manager that changes nothing."""

    __slots__ = ()

    def __enter__(self):
        return None

    def __exit__(self, *exc_info):
        return None


NOTHING = Nothing()
