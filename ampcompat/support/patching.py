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

    Each undo is recorded before its change is made, and dropped after it has run, so that an interrupt loses neither.
    So an undo must allow that nothing was changed yet, and that it runs again.

    Owners that are neither modules nor classes are referenced weakly, and their entries are dropped when they are
    freed. Otherwise, a long session would keep every model of a cross-validation in memory.
    """

    def __init__(self):
        self._entries = {}  # number -> _Entry, oldest first

    def set(self, owner, name, value):
        """Set ``owner.name = value``; ``undo`` restores the owner's own entry, or its absence."""
        self._defer_restore(_restore, owner, name)
        setattr(owner, name, value)

    def wrap(self, owner, name, call):
        """Set a function that calls ``call(original, *args, **kwargs)``, and has the original's name and signature."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            return call(original, *args, **kwargs)

        self.set(owner, name, wrapper)

    def set_in_dict(self, owner, name, value):
        """Like ``set``, without the owner's ``__setattr__`` and ``__delattr__``, which may refuse unknown names."""
        self._defer_restore(_restore_in_dict, owner, name)
        vars(owner)[name] = value

    def _defer_restore(self, restore, owner, name):
        before = vars(owner).get(name, _ABSENT)
        if isinstance(owner, (type, ModuleType)):
            self.defer(restore, lambda: owner, name, before)
        else:
            entry = _Entry(self._entries, weakref.ref, owner)
            entry.record(restore, entry.owner, name, before)

    def redirect(self, function, call):
        """Like ``wrap``, for every caller of a Python function, under whatever name they imported it.

        The function object stays the same and keeps its signature; its code is replaced.

        Args:
            function: a Python function that is not a closure.
            call: gets a copy of the current function.
        """
        original = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__ = function.__kwdefaults__
        functools.update_wrapper(original, function, updated=())
        del original.__wrapped__
        state = (original.__code__, original.__defaults__, original.__kwdefaults__)
        self.defer(_exchange_code, function, *state)
        self.set(function, "__wrapped__", original)
        in_its_place = functools.partial(call, original)
        _exchange_code(function, _elsewhere.__code__, None, {"_ampcompat_call": in_its_place})

    def defer(self, undo, *args):
        """Call ``undo(*args)`` when the stack is undone. For changes that are not attributes."""
        _Entry(self._entries).record(undo, *args)

    def defer_for(self, owner, undo, *args):
        """Call ``undo(*args)`` when the stack is undone, if ``owner`` still exists. ``args`` must not reference it."""
        _Entry(self._entries, weakref.ref, owner).record(undo, *args)

    def defer_weakly(self, method):
        """Call the bound ``method`` when the stack is undone, if its object still exists."""
        entry = _Entry(self._entries, weakref.WeakMethod, method)
        entry.record(_call_if_alive, entry.owner)

    def register(self, register, *args, owner=None):
        """Return ``register(*args)``, a handle whose ``remove`` is called when the stack is undone.

        Args:
            args: the hook first.
            owner: what gets the hook, as in ``defer_for``, or None.
        """
        handles = [_UnreturnedHandle(owner, *args)]
        if owner is None:
            self.defer(_remove, handles)
        else:
            self.defer_for(owner, _remove, handles)
        handles[0] = register(*args)
        return handles[0]

    def mark(self):
        """Return what ``undo`` takes to undo only later changes."""
        return next(_numbers)

    def undo(self, since=-1):
        """Undo everything, newest first, even if some of it raises; then raise the first error.

        What raises is tried once more, since it may have been interrupted.

        Args:
            since: what ``mark`` has returned: changes made before it stay.
        """
        try:
            self._run(since)
        except BaseException as error:
            run_after(error, functools.partial(self._run, since))  # if it was interrupted between two of them
            raise

    def _run(self, since):
        errors = []
        for entry in reversed(list(self._entries.values())):
            of_entry = []
            while entry.number > since and entry.is_due():
                try:
                    entry.run()
                except BaseException as error:
                    if not of_entry or type(error) is not type(of_entry[0]):
                        of_entry.append(error)
            errors += of_entry
        _raise_first(errors)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        run_after(error, self.undo)

    def __deepcopy__(self, memo):
        return PatchStack()  # a copy has changed nothing yet


class _Entry:
    """One change. It removes itself from its dict when the changed object is freed.

    Args:
        home: the dict, to which ``record`` adds it.
        make_reference, owner: what makes a weak reference to the changed object, and this; None for no reference.
    """

    __slots__ = ("number", "owner", "_home", "_undo", "_args", "_attempts")

    def __init__(self, home, make_reference=None, owner=None):
        self.number = next(_numbers)
        self._home = home
        self._attempts = 0
        self._undo = None
        self.owner = None if make_reference is None else make_reference(owner, self._drop)

    def record(self, undo, *args):
        """Add the entry to its dict, with the function that undoes the change."""
        self._undo, self._args = undo, args
        self._home[self.number] = self

    def is_due(self):
        """Return whether the change is still to be undone; after two attempts it is given up."""
        if self._attempts == 2:
            self._drop()
        return self._undo is not None

    def run(self):
        """Undo the change, unless the owner was freed."""
        self._attempts += 1
        if self.owner is None or self.owner() is not None:
            self._undo(*self._args)
        self._drop()

    def _drop(self, reference=None):
        self._home.pop(self.number, None)
        # Break the reference cycle: the weak reference's callback is a method of this entry.
        self._undo = self._args = self.owner = None


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
    errors = []
    for function, args in calls:
        try:
            function(*args)
        except BaseException as error:
            errors.append(error)
    if errors:
        _raise_first(errors)


def _raise_first(errors):
    for later in errors[1:]:
        chain(errors[0], later)
    if errors:
        raise errors[0]


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


class _UnreturnedHandle:
    """The handle of a hook until ``register`` has returned another: an interrupt may come after the hook was set."""

    def __init__(self, owner=None, hook=None, *others):
        self._owner, self._hook = owner, hook

    def remove(self):
        """Remove the hook, or torch's wrapper of it, from the owner's dicts of hooks."""
        attributes = {} if self._owner is None else vars(self._owner)
        for hooks in [value for name, value in attributes.items() if name.endswith("_hooks")]:
            for key in [key for key, value in hooks.items() if getattr(value, "hook", value) is self._hook]:
                del hooks[key]


def _remove(handles):
    for handle in handles:
        handle.remove()


def _call_if_alive(weak_method):
    method = weak_method()
    if method is not None:
        method()
