"""Whether casts are in force in this thread.

Owns: ``Switch``.
Must not touch: torch.
The surprise: ``local.off`` is a class attribute that a thread shadows while it pauses or stands in a region, so that one attribute
read answers for the process and for the thread, and closing the backend reaches threads that never heard of it.
"""

import threading


class Switch:
    """On or off for the process, and the other way for a while in one thread."""

    def __init__(self):
        # A class of its own for each switch: the process-wide answer is the class attribute.
        self._everywhere = type("Local", (threading.local,), {"off": True, "depth": 0, "inside": False})
        self.local = self._everywhere()
        self._lock = threading.Lock()
        self._pausing_threads = self._threads_inside = 0
        #: What compiled code goes by, for compilers guard on plain attributes and not on thread-locals: whether casts
        #: are off for the process or paused in any thread.
        self.is_off_somewhere = True

    def turn_on(self):
        """Put casts in force in every thread that does not pause them."""
        self._everywhere.off = False
        self._note()

    def turn_off(self):
        """Take casts out of force in every thread, but for those that stand in a region."""
        self._everywhere.off = True
        self._note()

    def pause(self):
        """Turn casts off in this thread until the matching ``resume``."""
        # As ``change_pauses(1)``, written out: every backward pass and every step comes by here.
        local = self.local
        local.depth = depth = local.depth + 1
        if depth == 1:
            local.off = True
            with self._lock:
                self._pausing_threads += 1
                self.is_off_somewhere = True

    def resume(self):
        """End the newest ``pause`` of this thread."""
        local = self.local
        local.depth = depth = local.depth - 1
        if not depth:
            self._give_back(local)
            self._note(pausing=-1)

    def change_pauses(self, change):
        """Change the number of this thread's pauses; at none of them its region decides, or else the process."""
        local = self.local
        before = local.depth
        local.depth = after = before + change
        if after and not before:
            local.off = True
            self._note(pausing=1)
        elif before and not after:
            self._give_back(local)
            self._note(pausing=-1)

    def stand_inside(self, inside):
        """Put this thread, which must not pause, in a region where casts are on, or out of it; return where it was."""
        local = self.local
        was = local.inside
        if inside is not was:
            local.inside = inside
            self._give_back(local)
            self._note(inside=1 if inside else -1)
        return was

    @staticmethod
    def _give_back(local):
        if local.inside:
            local.off = False
        elif "off" in vars(local):
            del local.off

    def _note(self, pausing=0, inside=0):
        with self._lock:
            self._pausing_threads += pausing
            self._threads_inside += inside
            is_off = self._everywhere.off and not self._threads_inside
            self.is_off_somewhere = is_off or self._pausing_threads > 0


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


class Inside(Unpaused):
    """Context manager: casts on in this thread, whatever the process says and whatever paused them further out."""

    __slots__ = ("_was",)

    def __enter__(self):
        super().__enter__()
        self._was = self._switch.stand_inside(True)

    def __exit__(self, *exc_info):
        self._switch.stand_inside(self._was)
        super().__exit__(*exc_info)


class Nothing:
    """Context manager that changes nothing."""

    __slots__ = ()

    def __enter__(self):
        return None

    def __exit__(self, *exc_info):
        return None


NOTHING = Nothing()
