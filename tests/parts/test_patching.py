"""PatchStack puts back exactly what an owner's own ``__dict__`` held."""

import gc
import types
import weakref

import pytest

from ampcompat.parts.patching import PatchStack


class Base:
    inherited = "from the base"

    @staticmethod
    def static():
        return "static"


class Child(Base):
    own = "own"


def test_undo_restores_an_own_attribute():
    with PatchStack() as patches:
        patches.set(Child, "own", "changed")
        assert Child.own == "changed"
    assert Child.own == "own"


def test_undo_deletes_what_shadowed_an_inherited_attribute():
    with PatchStack() as patches:
        patches.set(Child, "inherited", "changed")
    assert "inherited" not in vars(Child)
    assert Child.inherited == "from the base"


def test_undo_deletes_what_was_not_there():
    with PatchStack() as patches:
        patches.set(Child, "new", 1)
    assert not hasattr(Child, "new")


def test_a_static_method_comes_back_as_one():
    before = vars(Base)["static"]
    with PatchStack() as patches:
        patches.set(Base, "static", staticmethod(lambda: "changed"))
        assert Base().static() == "changed"
    assert vars(Base)["static"] is before


def test_two_patches_of_one_name_are_undone_in_reverse():
    module = types.ModuleType("module")
    module.value = 0
    with PatchStack() as patches:
        patches.set(module, "value", 1)
        patches.set(module, "value", 2)
    assert module.value == 0


def test_an_undo_that_raises_does_not_keep_the_others_from_running():
    module = types.ModuleType("module")
    patches = PatchStack()
    patches.set(module, "value", 1)
    patches.defer(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        patches.undo()
    assert not hasattr(module, "value")


def test_undo_twice_is_undo_once():
    calls = []
    patches = PatchStack()
    patches.defer(calls.append, 1)
    patches.undo()
    patches.undo()
    assert calls == [1]


def test_absorbed_changes_are_undone_by_the_new_owner_only():
    module = types.ModuleType("module")
    outer = PatchStack()
    with PatchStack() as inner:
        inner.set(module, "value", 1)
        outer.absorb(inner)
    assert module.value == 1
    outer.undo()
    assert not hasattr(module, "value")


def test_instances_are_not_kept_alive_by_their_patches():
    patches, child = PatchStack(), Child()
    patches.set(child, "own", "changed")
    patches.defer_weakly(types.MethodType(lambda self: None, child))
    reference = weakref.ref(child)
    del child
    gc.collect()
    assert reference() is None
    patches.undo()
