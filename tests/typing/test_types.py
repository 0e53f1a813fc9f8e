"""What mypy makes of the public API in a client's file."""

import os
import sys

import pytest
from helpers.processes import ROOT, python

FOLDER = os.path.dirname(os.path.abspath(__file__))


@pytest.mark.skipif(sys.version_info < (3, 9), reason="mypy needs Python 3.9")
def test_a_typed_client_checks_and_its_mistakes_are_found():
    pytest.importorskip("mypy", reason="mypy is not installed")
    torch = pytest.importorskip("torch")
    if not os.path.exists(os.path.join(os.path.dirname(torch.__file__), "py.typed")):
        pytest.skip("this torch has no types")
    if not hasattr(torch, "compile"):
        pytest.skip("types of torch before 2.0 lack names that the client uses")
    files = ["--config-file", os.path.join(FOLDER, "mypy.ini"), os.path.join(FOLDER, "client.py")]
    done = python("-m", "mypy", "--cache-dir", os.devnull, *files, cwd=ROOT)
    if 'Module "torch.optim" does not explicitly export attribute "Adam"' in done.stdout:
        pytest.skip("torch.optim of torch 2.4 does not export its classes to type checkers")
    assert (done.returncode, done.stdout.strip()) == (0, "Success: no issues found in 1 source file"), done.stderr


def test_the_package_says_that_it_is_typed():
    assert os.path.exists(os.path.join(ROOT, "ampcompat", "py.typed"))


def test_dir_lists_the_api_and_nothing_else():
    import ampcompat
    from ampcompat import amp

    assert dir(amp) == sorted(amp.__all__) and all(hasattr(amp, name) for name in dir(amp))
    assert dir(ampcompat) == sorted(ampcompat.__all__ + ["__version__"])


def test_types_of_initialize_name_every_option():
    import ast
    import inspect

    from ampcompat import amp

    with open(os.path.join(ROOT, "ampcompat", "engine", "session", "type_annotations.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    (options,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    typed = [node.target.id for node in options.body if isinstance(node, ast.AnnAssign)]
    assert ["models", "optimizers", "enabled", "opt_level"] + typed == list(
        inspect.signature(amp.initialize).parameters
    )
