"""Every operator of torch's own database at O1 and O4, on both backends: against torch.autocast and float64."""

import pytest
import torch
from databases import no_call_stacks
from known_operator_differences import KNOWN
from operator_results import (
    PAIRS,
    cases,
    differences_from_torch,
    differences_of_backends,
    operators,
    skip_where_unavailable,
)

each_level = pytest.mark.parametrize("level", list(PAIRS))
each_backend = pytest.mark.parametrize("name", ["native", "patched"])


@pytest.fixture(scope="module", autouse=True)
def database_is_imported():
    """Import the database before a test looks at torch; skip the tests where there is none."""
    with no_call_stacks():
        operators()
        yield
    torch.set_default_dtype(torch.float32)  # what makes samples in torch 2.0 sets it to float64


def known(name, level):
    """Return {(what differs, operator, inputs): why} of a backend, or of "both", for what is tested with this torch."""
    tested = {(case.operator.name, case.inputs) for case in cases(level)}
    return {key[:3]: why for key, why in KNOWN.items() if key[3] == name and key[1:3] in tested}


def check(found, expected):
    """Compare differences with the known ones."""
    assert {key: sentence for key, sentence in found.items() if key not in expected} == {}
    assert {key: why for key, why in expected.items() if key not in found} == {}, "known to differ, but they agree"


@each_level
@each_backend
def test_operators_run_and_give_the_values_and_gradients_of_float64_where_autocast_runs(name, level):
    skip_where_unavailable(level, name)
    check(differences_from_torch(level, name), known(name, level))


@each_level
def test_both_backends_give_every_operator_one_result_dtype(level):
    skip_where_unavailable(level, "native", "patched")
    check(differences_of_backends(level), known("both", level))


@each_level
def test_most_operators_of_the_database_are_tested(level):
    tested = {(case.operator.name, case.inputs) for case in cases(level)}
    assert len(tested) > 900
