"""Paired axes: any two values of two axes are in a case together, in far fewer cases than a product has."""

import itertools

import pytest
from helpers.pairing import paired, pairs

AXES = [
    [list("abcdefghijk"), ["before", "after"], [None, 0, 2], list("uvwxy")],
    [[1], [2, 3]],
    [list(range(6)), list(range(6)), list(range(6))],
]


@pytest.mark.parametrize("axes", AXES, ids=len)
def test_any_two_values_occur_together(axes):
    cases = pairs(*axes)
    assert len(cases) == len(set(cases))
    for one, other in itertools.combinations(range(len(axes)), 2):
        assert {(case[one], case[other]) for case in cases} == set(itertools.product(axes[one], axes[other]))


def test_there_are_about_as_many_cases_as_the_two_longest_axes_have_pairs():
    assert len(pairs(*AXES[0])) <= 60
    assert len(pairs(*AXES[2])) <= 50


def test_ids_and_values_are_those_of_the_params_and_a_skipped_one_is_one_case():
    skipped = pytest.param(1, id="one", marks=pytest.mark.skip(reason="it is missing"))
    cases = paired("first, second", [skipped, 2, pytest.param(3, id="three")], "ab").args[1]
    assert [(case.id, case.values) for case in cases] == [
        ("2-a", (2, "a")),
        ("2-b", (2, "b")),
        ("three-a", (3, "a")),
        ("three-b", (3, "b")),
        ("one-a", (1, "a")),
    ]
    assert [bool(case.marks) for case in cases] == [False] * 4 + [True]


def test_an_axis_of_skipped_values_leaves_skipped_cases_only():
    skipped = [pytest.param(number, marks=pytest.mark.skip(reason="it is missing")) for number in (1, 2)]
    assert [case.id for case in paired("first, second", skipped, "ab").args[1]] == ["1-a", "2-a"]
