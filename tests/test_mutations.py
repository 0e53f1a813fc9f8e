"""The faults of ``mutations.py`` can be seeded: every text is there once, every mutant compiles, every test exists."""

import ast
import pathlib

from helpers import mutations
from helpers.mutations import FAULTS

TESTS = pathlib.Path(__file__).parent
PACKAGE = mutations.ROOT / "ampcompat"


def test_the_text_of_every_fault_is_in_its_file_exactly_once():
    assert mutations.stale(FAULTS) == []


def test_there_are_thirty_faults_of_different_names_in_ten_modules():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30
    assert len({fault.file for fault in FAULTS}) >= 10


def test_every_fault_leaves_a_module_that_differs_and_compiles():
    for fault in FAULTS:
        source = (PACKAGE / fault.file).read_text(encoding="utf-8")
        mutant = source.replace(fault.text, fault.replacement)
        assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(source)), fault.name


def test_the_tests_that_should_catch_a_fault_exist():
    named = {file for fault in FAULTS for file in fault.tests.split()}
    assert sorted(file for file in named if not (TESTS / file).is_file()) == []


def test_a_text_that_is_no_longer_there_is_an_error_that_says_so(capsys, monkeypatch):
    gone = FAULTS[0]._replace(text="no such line anywhere")
    monkeypatch.setattr(mutations, "FAULTS", [gone])
    assert mutations.main([]) == 2
    said = capsys.readouterr().err
    assert gone.name in said and "occurs 0 times" in said and "tests/seeded_faults.py" in said
