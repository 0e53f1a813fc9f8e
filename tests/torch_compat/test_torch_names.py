"""A dotted name refers to what a script that writes it gets."""

import sys

import pytest
import torch

from ampcompat.support.torch_compat import torch_names


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make the package ``spam`` with the module ``eggs``, and a module ``fft`` that has the name of a function."""
    folder = tmp_path / "spam"
    folder.mkdir()
    for name, text in (("__init__", "def fft(): pass"), ("fft", ""), ("eggs", "class Egg: pass")):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [each for each in sys.modules if each.split(".")[0] == "spam"]:
        del sys.modules[name]


def test_names_of_torch():
    assert torch_names.find("torch.nn.functional") is torch.nn.functional
    assert torch_names.find("torch.nn.parallel.parallel_apply") is sys.modules["torch.nn.parallel.parallel_apply"]
    assert torch_names.find("torch.Tensor") is torch.Tensor
    assert torch_names.find("torch.Tensor.add_") is torch.Tensor.add_
    assert torch_names.find("torch.no.such.name") is torch_names.find("torch.Tensor.no_such_name") is None


def test_a_submodule_is_imported_unless_its_name_is_that_of_a_function(package):
    """As in torch 1.7, where ``torch.fft(x, 1)`` would fail after an import of ``torch.fft``."""
    assert torch_names.find("spam.eggs.Egg").__name__ == "Egg"
    del sys.modules["spam"].eggs  # as long as its import has not returned
    assert torch_names.find("spam.eggs.Egg").__name__ == "Egg"
    assert callable(torch_names.find("spam.fft"))
    assert callable(sys.modules["spam"].fft) and "spam.fft" not in sys.modules
