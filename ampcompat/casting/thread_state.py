"""``Switch``: whether casts are on in the calling thread, by the state of the process and the thread's own."""

import os
import threading
import weakref

from .compile import end_graph, is_tracing

_with_threads = weakref.WeakSet()


def forget_threads_in_forks(owner):
    """Call ``owner.forget_threads()`` now and in every forked process, which has only the thread that forked it."""
    _with_threads.add(owner)
    owner.forget_threads()


def _forget_threads():
    for owner in list(_with_threads):
        owner.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


class Switch:
    """On or off for the process, and the other way for a while in one thread."""

    def __init__(self):
        # Each switch has its own class, whose attribute ``off`` is the state of the process. A thread shadows it while
        # it pauses or is in a region. So one attribute read is enough, and closing the backend reaches every thread.
        # ``uncast``: whether the thread is in the ``forward`` of a model at a level that casts no functions.
        at_first = {"off": True, "depth": 0, "inside": False, "uncast": False}
        self._process_state = type("Local", (threading.local,), at_first)
        self.local = self._process_state()
        #: The ``argument_casts.CastDevices``: on which devices tensors are cast.
        self.devices = None
        self._is_off = True
        forget_threads_in_forks(self)

    def forget_threads(self):
        """Count only the calling thread, as far as it pauses casts or is in a region."""
        # One item per thread: unlike additions to a number, ``append`` and ``pop`` need no lock.
        self._pausing, self._inside = [None] * (self.local.depth > 0), [None] * self.local.inside

    @property
    def is_off_somewhere(self):
        """Whether casts are off for the process or paused in any thread.

        Compiled code uses this, because torch.compile guards on plain attributes and not on thread-locals.
        """
        return bool(self._pausing) or (self._is_off and not self._inside)

    def turn_on(self):
        """Turn casts on in every thread that does not pause them."""
        self._process_state.off = self._is_off = False

    def turn_off(self):
        """Turn casts off in every thread, except in those that are in a region."""
        self._process_state.off = self._is_off = True

    def change_pauses(self, change):
        """Change the number of this thread's pauses. At 0 its region decides, and outside a region the process."""
        mine = vars(self.local)  # of this thread; a dict is faster than several reads of a thread-local
        before = mine.get("depth", 0)
        mine["depth"] = after = before + change
        if after and not before:
            mine["off"] = True
            self._pausing.append(None)
        elif before and not after:
            _restore_state(mine)
            self._pausing.pop()

    def mark_inside(self, inside):
        """Put this thread, which must not pause, in or out of a region; return whether it was in one."""
        mine = vars(self.local)
        was = mine.get("inside", False)
        if inside is not was:
            mine["inside"] = inside
            _restore_state(mine)
            if inside:
                self._inside.append(None)
            else:
                self._inside.pop()
        return was


def _restore_state(mine):
    """Make ``off`` what the region of a thread says, or outside a region that of the process."""
    if mine.get("inside"):
        mine["off"] = False
    else:
        mine.pop("off", None)


class Paused:
    """Context manager: casts off in this thread. A class, for speed: it is entered at every backward."""

    __slots__ = ("_switch",)

    def __init__(self, switch):
        self._switch = switch

    def __enter__(self):
        if is_tracing():
            end_graph()
        self._switch.change_pauses(1)

    def __exit__(self, *exc_info):
        self._switch.change_pauses(-1)


class Unpaused:
    """Context manager: this thread's pauses suspended, for code that must run under the casts of an earlier time."""

    __slots__ = ("_switch", "_depth")

    def __init__(self, switch):
        self._switch = switch

    def __enter__(self):
        self._depth = self._switch.local.depth
        self._switch.change_pauses(-self._depth)

    def __exit__(self, *exc_info):
        self._switch.change_pauses(self._depth)


class InRegion(Unpaused):
    """Context manager: casts on in this thread, even if they are off for the process or paused outside."""

    __slots__ = ("_was",)

    def __enter__(self):
        super().__enter__()
        self._was = self._switch.mark_inside(True)

    def __exit__(self, *exc_info):
        self._switch.mark_inside(self._was)
        super().__exit__(*exc_info)
