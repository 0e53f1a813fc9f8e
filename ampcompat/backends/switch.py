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
        self._lock = threading.Lock()
        self._pausing_threads = 0
        #: What compiled code goes by, for compilers guard on plain attributes and not on thread-locals: whether casts
        #: are off for the process or paused in any thread.
        self.is_off_somewhere = True

    def turn_on(self):
        """Put casts in force in every thread that does not pause them."""
        self._everywhere.off = False
        self._note(0)

    def turn_off(self):
        """Take casts out of force in every thread."""
        self._everywhere.off = True
        self._note(0)

    def pause(self):
        """Turn casts off in this thread until the matching ``resume``."""
        self.change_pauses(1)

    def resume(self):
        """End the newest ``pause`` of this thread."""
        self.change_pauses(-1)

    def change_pauses(self, change):
        """Change the number of this thread's pauses; at none of them the process decides."""
        local = self.local
        before = local.depth
        local.depth = after = before + change
        if after and not before:
            local.off = True
            self._note(1)
        elif before and not after:
            del local.off
            self._note(-1)

    def _note(self, change):
        with self._lock:
            self._pausing_threads += change
            self.is_off_somewhere = self._everywhere.off or self._pausing_threads > 0

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
        self._depth = self._switch.local.depth
        self._switch.change_pauses(-self._depth)

    def __exit__(self, *exc_info):
        self._switch.change_pauses(self._depth)


class Nothing:
    """Context manager that changes nothing."""

    __slots__ = ()

    def __enter__(self):
        return None

    def __exit__(self, *exc_info):
        return None


NOTHING = Nothing()
