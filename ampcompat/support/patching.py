"""``PatchStack``, which replaces attributes of other libraries' objects and restores every one of them.

It restores the owner's own ``__dict__``: a name that a class inherited is deleted again, not set to the inherited
value, and a static method is restored as a static method.
"""

import contextlib
import functools
import inspect
import itertools
import weakref
from types import FunctionType, ModuleType

_ABSENT = object()
_numbers = itertools.count()


class PatchStack:
    """A stack of changes, undone in reverse order. Usable as a context manager.

    Owners that are neither modules nor classes are referenced weakly, and their entries are dropped when they are
    freed. Otherwise, a long session would keep every model of a cross-validation in memory.
    """

    def __init__(self):
        self._entries = {}  # number -> _Entry, oldest first

    def set(self, owner, name, value):
        """Set ``owner.name = value``; ``undo`` restores the owner's own entry, or its absence."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._add_restore(_restore, owner, name, before)

    def set_in_dict(self, owner, name, value):
        """Like ``set``, without the owner's ``__setattr__`` and ``__delattr__``, which may refuse unknown names."""
        before = vars(owner).get(name, _ABSENT)
        vars(owner)[name] = value
        self._add_restore(_restore_in_dict, owner, name, before)

    def _add_restore(self, restore, owner, name, before):
        if isinstance(owner, (type, ModuleType)):
            _Entry(self._entries, restore, (lambda: owner, name, before))
        else:
            entry = _Entry(self._entries, restore)
            entry.args = entry.ends_with(weakref.ref, owner), name, before

    def redirect(self, function, make):
        """Make every caller of a Python function call ``make(original)`` instead, under whatever name they imported it.

        The function object stays the same and keeps its signature; its code is replaced.

        Args:
            function: a Python function that is not a closure.
            make: called once with a copy of the current function; returns the function to call instead.
        """
        original = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__ = function.__kwdefaults__
        functools.update_wrapper(original, function, updated=())
        del original.__wrapped__
        state = (original.__code__, original.__defaults__, original.__kwdefaults__)
        self.defer(_exchange_code, function, *state)
        self.set(function, "__wrapped__", original)
        _exchange_code(function, _elsewhere.__code__, None, {"_ampcompat_call": make(original)})

    def defer(self, undo, *args):
        """Call ``undo(*args)`` when the stack is undone. For changes that are not attributes."""
        _Entry(self._entries, undo, args)

    def defer_for(self, owner, undo, *args):
        """Call ``undo(*args)`` when the stack is undone, if ``owner`` still exists. ``args`` must not reference it."""
        _Entry(self._entries, undo, args).ends_with(weakref.ref, owner)

    def defer_weakly(self, method):
        """Call the bound ``method`` when the stack is undone, if its object still exists."""
        entry = _Entry(self._entries, _call_if_alive)
        entry.args = (entry.ends_with(weakref.WeakMethod, method),)

    def absorb(self, other):
        """Take over the changes of ``other``, which is empty afterwards."""
        for entry in list(other._entries.values()):
            entry.move(self._entries)

    def undo(self):
        """Undo everything, newest first, even if some of it raises; then raise the first error (``run_all``)."""
        entries = list(self._entries.values())
        self._entries.clear()
        run_all((entry.run, ()) for entry in reversed(entries))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        run_after(error, self.undo)

    def __deepcopy__(self, memo):
        return PatchStack()  # a copy has changed nothing yet


class _Entry:
    """One change. It removes itself from its dict when the changed object is freed.

    Args:
        home: the dict.
        undo, args: the function that undoes the change, and its arguments.
    """

    __slots__ = ("undo", "args", "_home", "_number", "_owner")

    def __init__(self, home, undo, args=()):
        self.undo = undo
        self.args = args
        self._number = next(_numbers)
        self._owner = None
        self._home = home
        home[self._number] = self

    def ends_with(self, make_reference, owner):
        """Return a weak reference to ``owner``; the entry is removed when ``owner`` is freed."""
        self._owner = make_reference(owner, self._drop)
        return self._owner

    def move(self, home):
        """Move to another dict, unless the owner was freed."""
        if self._home.pop(self._number, None) is not None:
            self._home = home
            if self._owner is None or self._owner() is not None:
                home[self._number] = self

    def run(self):
        """Undo the change, unless the owner was freed."""
        owner, undo, args = self._owner, self.undo, self.args
        # Break the reference cycle: the weak reference's callback is a method of this entry.
        self._owner = self.undo = self.args = None
        if owner is None or owner() is not None:
            undo(*args)

    def _drop(self, reference):
        self._home.pop(self._number, None)


def wraps_method(original):
    """Like ``functools.wraps(original)``, but ``inspect.getfullargspec`` returns the args of the original too.

    Unlike ``inspect.signature``, it does not follow ``__wrapped__``. Scripts read the args of ``forward`` with both.
    """

    def decorate(function):
        wrapper = functools.wraps(original)(function)
        if not hasattr(original, "__wrapped__"):
            with contextlib.suppress(TypeError, ValueError):  # a builtin may have none
                wrapper.__signature__ = inspect.signature(original)
        return wrapper

    return decorate


def run_all(calls):
    """Make every call, even if some raise; then raise the first error, with the others chained to it.

    Args:
        calls: an iterable of (function, arguments).
    """
    first = None
    for function, args in calls:
        try:
            function(*args)
        except BaseException as error:
            if first is None:
                first = error
            else:
                chain(first, error)
    if first is not None:
        raise first


def run_after(error, function):
    """Call ``function`` after a block that raised ``error`` (or None). If both raise, ``error`` is the one raised."""
    try:
        function()
    except BaseException as later:
        if error is None:
            raise
        chain(error, later)


def chain(error, later):
    """Make the traceback of ``error`` show ``later`` too, as the context of the oldest error in it."""
    last, shown = error, {id(error)}
    while _before(last) is not None and id(_before(last)) not in shown:
        last.__suppress_context__ = last.__cause__ is not None
        last = _before(last)
        shown.add(id(last))
    if id(later) in shown:
        return
    end = later
    while end.__context__ is not None and id(end.__context__) not in shown:
        end = end.__context__
    end.__context__ = None  # already in the chain; it would be a cycle
    last.__context__, last.__suppress_context__ = later, False


def _before(error):
    return error.__cause__ or error.__context__


def _elsewhere(*args, _ampcompat_call, **kwargs):
    return _ampcompat_call(*args, **kwargs)


def _exchange_code(function, code, defaults, keyword_defaults):
    function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, keyword_defaults


def _restore(reference, name, before):
    owner = reference()
    if owner is None:
        return
    if before is not _ABSENT:
        setattr(owner, name, before)
    elif name in vars(owner):
        delattr(owner, name)


def _restore_in_dict(reference, name, before):
    owner = reference()
    if owner is None:
        return
    if before is not _ABSENT:
        vars(owner)[name] = before
    else:
        vars(owner).pop(name, None)


def _call_if_alive(weak_method):
    method = weak_method()
    if method is not None:
        method()
