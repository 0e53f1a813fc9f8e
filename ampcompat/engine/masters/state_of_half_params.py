"""``optimizer.state`` with masters as keys, which a script reads and writes by the half params of its model, too."""

from collections import defaultdict
from collections.abc import MutableMapping

from ...support.containers import let_trees_contain


class StateByParam(defaultdict):
    """The state of an optimizer; a half param means its master. Deep copies and pickles are plain dicts.

    What a script makes by calling the class is a ``defaultdict`` like any other, until ``with_masters``.
    """

    has_masters = False  # whether half params mean their masters here

    @staticmethod
    def _master_of(key):
        return None

    @classmethod
    def with_masters(cls, state, master_of):
        """Return the entries of a dict.

        Args:
            state: the optimizer's own dict.
            master_of: returns the master of a half param, and None for any other key.
        """
        made = cls(getattr(state, "default_factory", None))
        made._master_of, made.has_masters = master_of, True
        made.update(state)
        return made

    def _key(self, key):
        master = self._master_of(key)
        return key if master is None else master

    def __missing__(self, key):  # all that a look-up in an optimizer's step costs is that of a dict
        master = self._master_of(key)
        return super().__missing__(key) if master is None else self[master]

    def __contains__(self, key):
        return super().__contains__(self._key(key))

    def __setitem__(self, key, value):
        super().__setitem__(self._key(key), value)

    def __delitem__(self, key):
        super().__delitem__(self._key(key))

    def get(self, key, default=None):
        """See ``dict.get``."""
        return super().get(self._key(key), default)

    def setdefault(self, key, default=None):
        """See ``dict.setdefault``."""
        return super().setdefault(self._key(key), default)

    def pop(self, key, *default):
        """See ``dict.pop``."""
        return super().pop(self._key(key), *default)

    update = MutableMapping.update

    def __ior__(self, other):
        self.update(other)
        return self

    def __or__(self, other):
        return self.copy().__ior__(other)

    def copy(self):
        """Return a shallow copy that is read by params, too."""
        return self.with_masters(self, self._master_of)

    __copy__ = copy

    def plain(self):
        """Return the same entries in a plain dict."""
        return dict(self) if self.default_factory is None else defaultdict(self.default_factory, self)

    def __reduce__(self):
        return self.plain().__reduce__() if self.default_factory else (dict, (), None, None, iter(self.items()))


let_trees_contain(
    StateByParam,
    lambda state: (list(state.values()), (state.default_factory, list(state))),
    lambda values, context: defaultdict(context[0], zip(context[1], values)),
)


def read_by_param(optimizer, master_of):
    """Make the state of an optimizer a ``StateByParam``, again where the optimizer or a script has replaced it."""
    state = optimizer.state
    if type(state) in (dict, defaultdict, StateByParam):
        _exchange(optimizer, StateByParam.with_masters(state, master_of))


def make_plain(optimizer):
    """Give an optimizer a plain dict again; call it before half params are its keys."""
    if type(optimizer.state) is StateByParam:
        _exchange(optimizer, optimizer.state.plain())


def _exchange(optimizer, state):
    """Put ``state`` in place of the optimizer's own, also in an optimizer that it wraps, which may share it."""
    before = optimizer.state
    for owner in [optimizer, *vars(optimizer).values()]:
        attributes = getattr(owner, "__dict__", {})
        for name in [name for name, value in attributes.items() if value is before]:
            attributes[name] = state
