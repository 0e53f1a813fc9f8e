"""The faults of ``helpers/mutations.py`` can be seeded: code is found, mutants compile, tests exist."""

import ast
import pathlib
import sys

import pytest
from helpers import mutations
from helpers.mutations import FAULTS

TESTS = pathlib.Path(__file__).parent

pytestmark = pytest.mark.skipif(sys.version_info < (3, 8), reason="ast has no end_lineno before Python 3.8")


def test_the_code_of_every_fault_is_found_in_one_place():
    assert mutations.stale(FAULTS) == []


def test_every_fault_leaves_a_module_that_differs_and_compiles():
    for fault in FAULTS:
        path, source = mutations.mutant(fault)
        assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(path.read_text(encoding="utf-8"))), fault.name


def test_names_differ_and_the_tests_that_should_catch_a_fault_exist():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    named = {file for fault in FAULTS for file in fault.tests.split()}
    assert sorted(file for file in named if not (TESTS / file).is_file()) == []


def test_code_is_found_whatever_its_layout_and_whatever_file_it_is_in(tmp_path, monkeypatch):
    (tmp_path / "moved").mkdir()
    source = "def f():\n    a = 1\n\n\nclass A:\n    def f(self):\n        a = [\n  1 ]\n"
    (tmp_path / "moved" / "scaler.py").write_text(source)
    monkeypatch.setattr(mutations, "PACKAGE", tmp_path)
    mutations.definitions.cache_clear()
    fault = FAULTS[0]._replace(function="A.f", code="a = [1]", replacement="a = [2]")
    assert mutations.mutant(fault)[1].endswith("        a = [2]\n")
    assert len(mutations.places(fault._replace(function="scaler.f", code="a = 1"))) == 1
    assert len(mutations.places(fault._replace(function="f", code="a ="))) == 2
    mutations.definitions.cache_clear()


def test_code_that_is_no_longer_there_is_an_error_that_says_so(capsys, monkeypatch):
    gone = FAULTS[0]._replace(code="no such code anywhere")
    monkeypatch.setattr(mutations, "FAULTS", [gone])
    assert mutations.main([]) == 2
    said = capsys.readouterr().err
    assert gone.name in said and "is in 0 places" in said and "tests/helpers/seeded_*faults.py" in said
