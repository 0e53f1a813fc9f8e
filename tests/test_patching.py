"""PatchStack restores exactly the previous contents of an object's ``__dict__``."""

import gc
import types
import weakref

import pytest
import torch

from ampcompat.support.patching import PatchStack, run_all


class Base:
    inherited = "from the base"

    @staticmethod
    def static():
        return "static"


class Child(Base):
    own = "own"


@pytest.mark.parametrize(
    "owner, name, value",
    [(Child, "own", 1), (Child, "inherited", 1), (Child, "new", 1), (Base, "static", staticmethod(lambda: 1))],
)
def test_undo_leaves_an_owner_with_what_it_had_of_its_own(owner, name, value):
    before = dict(vars(owner))
    with PatchStack() as patches:
        patches.set(owner, name, value)
        assert vars(owner)[name] is value
    assert dict(vars(owner)) == before


def test_two_patches_of_one_name_are_undone_in_reverse():
    module = types.ModuleType("module")
    module.value = 0
    with PatchStack() as patches:
        patches.set(module, "value", 1)
        patches.set(module, "value", 2)
    assert module.value == 0


def test_changes_before_the_mark_stay():
    module = types.ModuleType("module")
    patches = PatchStack()
    patches.set(module, "value", 1)
    since = patches.mark()
    patches.set(module, "value", 2)
    patches.set(module, "other", 3)
    patches.undo(since)
    assert module.value == 1 and not hasattr(module, "other")
    patches.undo()
    assert not hasattr(module, "value")


class Refusing(type):
    """A class whose attributes cannot be set."""

    def __setattr__(cls, name, value):
        raise KeyboardInterrupt


def test_a_change_that_was_recorded_and_not_made_is_undone_without_effect():
    patches, kind = PatchStack(), Refusing("kind", (), {})
    with pytest.raises(KeyboardInterrupt):
        patches.set(kind, "value", 1)
    patches.undo()
    assert not hasattr(kind, "value")


def test_an_undo_that_is_interrupted_is_called_again_before_older_ones():
    calls, interrupts = [], [KeyboardInterrupt]

    def undo(name):
        calls.append(name)
        if interrupts:
            raise interrupts.pop()

    patches = PatchStack()
    patches.defer(undo, "older")
    patches.defer(undo, "newer")
    with pytest.raises(KeyboardInterrupt):
        patches.undo()
    assert calls == ["newer", "newer", "older"]
    patches.undo()
    assert len(calls) == 3


class Handle:
    """Is removed by its list."""

    def __init__(self, handles):
        handles.append(self)
        self.remove = lambda: handles.remove(self)


def test_a_registered_hook_is_removed_and_one_that_could_not_be_registered_is_not():
    handles, patches = [], PatchStack()
    patches.register(Handle, handles)
    with pytest.raises(ZeroDivisionError):
        patches.register(lambda: 1 / 0)
    patches.undo()
    assert handles == []


@pytest.mark.parametrize(
    "name", ["register_forward_hook", "_register_state_dict_hook", "_register_load_state_dict_pre_hook"]
)
def test_a_hook_is_removed_if_a_signal_comes_before_its_handle_is_returned(name):
    patches, module = PatchStack(), torch.nn.Linear(1, 1)
    before = {name: dict(hooks) for name, hooks in vars(module).items() if name.endswith("_hooks")}

    def interrupted(hook):
        getattr(module, name)(hook)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        patches.register(interrupted, lambda *args: None, owner=module)
    patches.undo()
    assert {name: hooks for name, hooks in vars(module).items() if name.endswith("_hooks")} == before


def test_instances_are_not_kept_alive_by_their_patches():
    patches, child = PatchStack(), Child()
    patches.set(child, "own", "changed")
    patches.defer_weakly(types.MethodType(lambda self: None, child))
    reference = weakref.ref(child)
    del child
    gc.collect()
    assert reference() is None
    patches.undo()


def test_the_first_of_several_undos_that_raise_is_raised_and_shows_the_others():
    patches = PatchStack()
    for number in range(3):
        patches.defer({}.__getitem__, number)
    with pytest.raises(KeyError) as caught:
        patches.undo()
    shown = [caught.value, caught.value.__context__, caught.value.__context__.__context__]
    assert [error.args for error in shown] == [(2,), (1,), (0,)]
    assert shown[-1].__context__ is None


def test_an_error_in_the_block_counts_and_shows_that_of_undoing():
    with pytest.raises(ValueError) as caught:
        with PatchStack() as patches:
            patches.defer(lambda: 1 / 0)
            raise ValueError("body") from None
    assert isinstance(caught.value.__context__, ZeroDivisionError) and not caught.value.__suppress_context__


def test_errors_that_share_a_context_are_chained_without_a_circle():
    def reraises(error):
        try:
            raise error
        except KeyError as caught:
            raise ValueError from caught

    try:
        raise RuntimeError("handled meanwhile")
    except RuntimeError:
        with pytest.raises(ValueError) as caught:
            run_all([(reraises, (KeyError(1),)), (reraises, (KeyError(2),))])
    seen, error = set(), caught.value
    while error is not None:
        assert id(error) not in seen
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    assert len(seen) == 5


def test_what_was_to_be_undone_for_an_owner_that_died_is_dropped():
    kept, patches = Child(), PatchStack()
    for owner in (kept, Child()):
        patches.set(owner, "own", "changed")
        patches.defer_for(owner, lambda: None)
        patches.defer_weakly(types.MethodType(lambda self: None, owner))
    del owner
    gc.collect()
    assert len(patches._entries) == 2  # a method without other references is dropped too
    patches.undo()
    assert "own" not in vars(kept)
