"""``install`` and ``uninstall`` within a process: what they put first, and what they put back."""

import os
import sys
import types

import pytest

from ampcompat.apex import install, nvidia_apex
from ampcompat.support.child_environment import ChildEnvironment


@pytest.fixture(autouse=True)
def undone():
    yield
    install.uninstall()


def snapshot():
    apex = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "apex"}
    return list(sys.path), list(sys.meta_path), dict(os.environ), apex


@pytest.mark.parametrize("path", [None, os.pathsep.join(["/one", "/two"])], ids=["no PYTHONPATH", "PYTHONPATH"])
def test_uninstall_puts_everything_back(monkeypatch, path):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    before = snapshot()
    install.install()
    import apex

    assert os.path.dirname(os.path.dirname(apex.__file__)) == install.SITE
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == install.SITE
    assert (path or "") in os.environ["PYTHONPATH"]
    install.uninstall()
    assert snapshot() == before


def test_the_environment_keeps_what_it_inherits(monkeypatch):
    inherited = ["/one", "", "/two"]  # an empty entry is the current folder
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([install.SITE] + inherited))
    assert ChildEnvironment(has_alias=True).to_env()["PYTHONPATH"].split(os.pathsep)[:4] == [install.SITE] + inherited
    monkeypatch.setenv("PYTHONPATH", "")
    assert "" not in ChildEnvironment(has_alias=True).to_env()["PYTHONPATH"].split(os.pathsep)


def test_both_may_be_repeated():
    before = snapshot()
    install.uninstall()
    assert snapshot() == before
    install.install()
    installed = snapshot()
    install.install()
    assert snapshot() == installed
    install.uninstall()
    install.uninstall()
    assert snapshot() == before


def test_another_apex_that_is_loaded_is_set_aside_and_comes_back():
    other, part = types.ModuleType("apex"), types.ModuleType("apex.part")
    sys.modules.update({"apex": other, "apex.part": part})
    try:
        install.install()
        import apex

        assert apex is not other and "apex.part" not in sys.modules
        install.uninstall()
        assert sys.modules["apex"] is other and sys.modules["apex.part"] is part
    finally:
        del sys.modules["apex"], sys.modules["apex.part"]


def test_our_own_alias_is_not_another_apex(tmp_path):
    assert nvidia_apex.other_apex([install.SITE]) is None
    assert nvidia_apex.other_apex([str(tmp_path)]) is None
    (tmp_path / "apex").mkdir()
    assert nvidia_apex.other_apex([str(tmp_path)]) is None  # a folder without __init__ is not a package
    (tmp_path / "apex" / "__init__.py").write_text("")
    assert nvidia_apex.other_apex([install.SITE, str(tmp_path)]) == str(tmp_path / "apex")
