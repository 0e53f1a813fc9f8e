"""Call functions when a script reads or assigns ``data`` of a tensor, or calls a method that writes in place."""

import functools

import torch


def watch_data(kind, read, assigning, assigned, patches):
    """Watch the property ``data`` of a class.

    Args:
        kind: ``torch.Tensor`` or a subclass.
        read: called as ``read(tensor, data)`` when ``tensor.data`` was read.
        assigning: called as ``assigning(tensor)`` before it is set.
        assigned: called as ``assigned(tensor, value)`` after it was set.
        patches: the ``PatchStack`` that undoes it.
    """
    own = vars(kind).get("data")

    def original():  # looked up at each call: another library may set it on the base class, and remove it again
        return own or super(kind, kind).data

    def get_data(self):
        alias = original().__get__(self, type(self))
        read(self, alias)
        return alias

    def set_data(self, value):
        assigning(self)
        original().__set__(self, value)
        assigned(self, value)

    def delete_data(self):
        original().__delete__(self)

    patches.set(kind, "data", property(get_data, set_data, delete_data, original().__doc__))


#: Methods that end in "_" and do not write values.
_WITHOUT_WRITES = frozenset("requires_grad_ rename_ detach_ share_memory_".split())
_OPERATORS = "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()


def watch_methods_in_place(kind, may_be_written, patches):
    """Call ``may_be_written(tensor)`` before a method of a class writes to a tensor in place.

    Args:
        kind: ``torch.nn.Parameter``, or another subclass of ``torch.Tensor``.
        may_be_written: the function.
        patches: the ``PatchStack`` that undoes it.
    """
    public = [name for name in dir(torch.Tensor) if name.endswith("_") and not name.startswith("_")]
    operators = [f"__i{name}__" for name in _OPERATORS if hasattr(torch.Tensor, f"__i{name}__")]
    for name in sorted(set(public) - _WITHOUT_WRITES) + operators + ["__setitem__"]:
        patches.set(kind, name, _telling(name, may_be_written))


def _telling(name, may_be_written):
    original = getattr(torch.Tensor, name)

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        may_be_written(self)
        return original(self, *args, **kwargs)

    return method
