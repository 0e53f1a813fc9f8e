"""The line of the script, and which code of ampcompat is marked as no part of a model's computation."""

import os
import sys
import types

import pytest
import torch

from ampcompat.support import script_frames

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(script_frames.__file__)))


def calling(path, **names):
    """Return a function that calls its first argument with the others, in a file of a module with these names."""
    names.update(__name__="some.module", __package__="some")
    exec(compile("def call(function, *others):\n    return function(*others)\n", os.path.join(*path), "exec"), names)
    return names["call"]


def asked():
    return script_frames.is_bookkeeping()


@pytest.mark.parametrize("folder", ("engine", "of_any_name"))
def test_code_is_bookkeeping_if_its_module_or_package_is_marked_wherever_it_is(folder, monkeypatch):
    own = calling((FOLDER, folder, "own.py"))
    assert not own(asked)
    assert calling((FOLDER, folder, "own.py"), IS_BOOKKEEPING=True)(asked)
    monkeypatch.setitem(sys.modules, "some", types.SimpleNamespace(IS_BOOKKEEPING=True))
    assert own(asked)
    assert not calling((FOLDER, folder, "own.py"), IS_BOOKKEEPING=False)(asked)


def test_code_that_bookkeeping_calls_is_bookkeeping_unless_a_script_or_torch_is_between():
    marked, own = calling((FOLDER, "a.py"), IS_BOOKKEEPING=True), calling((FOLDER, "b.py"))
    assert marked(own, asked)
    for other in (("script.py",), (os.path.dirname(torch.__file__), "nn", "functional.py")):
        assert not marked(calling(other), own, asked)


def test_optimizers_of_torch_are_bookkeeping():
    assert calling((os.path.dirname(torch.optim.__file__), "sgd.py"))(asked)
