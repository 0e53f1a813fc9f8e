"""Evidence becomes sentences: the right culprit, a magnitude with its scale, advice that fits."""

import pytest

from ampcompat.parts.reasons import Evidence, Place, explain, number

GRADIENT = Place("body.weight", "inf", "float16", 3.2)


def evidence(**found):
    return Evidence(**dict(dict(step=7, loss_id=0, scale=65536.0), **found))


def test_an_overflow_only_through_the_scale_is_told_with_its_numbers():
    cause, facts, advice = explain(evidence(gradient=GRADIENT))
    assert cause == "inf in the gradient of body.weight"
    assert facts == (
        "The loss was finite. In the backward pass inf came first in the gradient of body.weight, at scale 65536; its "
        "largest true magnitude before was 3.2, which is 2.1e+05 scaled, over float16's 65504."
    )
    assert advice.startswith("nothing.")


def test_a_gradient_that_was_small_before_is_told_to_have_grown():
    small = GRADIENT._replace(before=0.001)
    _, facts, advice = explain(evidence(gradient=small, scale=1024.0, good_passes=100))
    assert "which is 1.02 scaled, within float16's 65504: this one was over 6.4e+04 times as large" in facts
    assert advice.startswith("nothing, if it is rare")
    assert "keep_fp32=[\"body\"]" in advice


@pytest.mark.parametrize(
    "found, words",
    [
        (dict(scale=8.0), "the scale is low already, so these gradients are truly large: use O4 or O5"),
        (dict(scale=1024.0, skips_in_a_row=12), "lower scales did not help, so these gradients are truly large"),
        (dict(dynamic=False), "loss_scale=16384, which fits what came before, or loss_scale=\"dynamic\""),
        (dict(dynamic=False, scale=128.0), "O4 or O5 (bfloat16 needs no loss scale), keep_fp32=[\"body\"], or lower"),
        (dict(low="bfloat16", limit=3.39e38, scale=1.0), "so these gradients are truly large: lower"),
    ],
)
def test_advice_on_an_infinite_gradient(found, words):
    assert words in explain(evidence(gradient=GRADIENT, **found))[2]


def test_a_nan_gradient_far_from_the_limit_is_a_slope():
    place = Place("stem", "nan", "float16", 0.01)
    _, facts, advice = explain(evidence(arriving=place, gradient=GRADIENT, after="mid", scale=256.0))
    assert "the gradient at the output of stem, at scale 256; one stop earlier, at the output of mid, it was" in facts
    assert advice.startswith("look into the backward pass of mid: nan comes from the slope of a root")
    later = explain(evidence(arriving=place, after="mid", scale=256.0, skips_in_a_row=3))[2]
    assert "nan, which lower scales did not change, comes" in later


def test_a_nan_gradient_that_was_about_to_overflow_is_put_down_to_the_scale():
    place = Place("stem", "nan", "float16", 30.0)
    assert explain(evidence(arriving=place, after="mid"))[2].startswith("nothing.")


def test_gradients_that_are_bad_from_the_start_come_from_the_loss_function():
    _, facts, advice = explain(evidence(arriving=Place("head", "nan", "float16"), scale=2.0))
    assert facts.endswith("at scale 2, straight from the loss function.")
    assert "backward pass of the loss function" in advice


@pytest.mark.parametrize(
    "place, words",
    [
        (Place("body", "inf", "float16", 900.0), "more than float16 can hold (65504): keep_fp32=[\"body\"]"),
        (Place("body", "inf", "float32"), "body leaves the range of float32 by itself, so no opt level"),
        (Place("body", "nan", "float16"), "In float16 an eps under 6e-8 is 0, so keep_fp32=[\"body\"]"),
        (Place("body", "nan", "float32"), "nan comes from 0/0, inf - inf, the logarithm or root of a negative number."),
        (Place("body of G", "inf", "float16"), "keep_fp32=[\"body\"]"),
        (Place("the whole Net", "inf", "float16"), "keep_fp32=[Net]"),
    ],
)
def test_advice_on_an_output(place, words):
    _, facts, advice = explain(evidence(loss="nan", output=place, gradient=GRADIENT))
    first = "In the forward pass {} came first from module {}, in {}"
    assert first.format(place.what, place.name, place.dtype) in facts
    assert words in advice


def test_an_output_that_does_not_reach_the_loss_is_not_blamed():
    cause, facts, _ = explain(evidence(output=Place("mask", "inf", "float16"), gradient=GRADIENT))
    assert cause == "inf in the gradient of body.weight"
    assert facts.endswith("The output of mask held inf, which did not reach the loss.")


def test_nothing_found_is_another_rank_or_said_to_be_nothing():
    assert "another rank overflowed" in explain(evidence(ranks=2))[1]
    assert "every gradient that is still there" in explain(evidence())[1]


def test_a_param_alone_may_have_caught_it_from_another_rank():
    assert "It may have come from another rank" in explain(evidence(ranks=2, gradient=GRADIENT))[1]


def test_what_was_not_heard_is_said():
    assert explain(evidence(loss="nan", heard=False))[1].endswith("has compiled is not looked into.")


@pytest.mark.parametrize("value, words", [(3.0, "3"), (65504.0, "65504"), (0.158203, "0.158"), (3.4e38, "3.4e+38")])
def test_numbers_are_short(value, words):
    assert number(value) == words


@pytest.mark.parametrize(
    "place, words",
    [
        (Place("the input of head", "inf", "float16"), "make more than float16 can hold (65504): compute it from x.float()"),
        (Place("the input of head", "nan", "float16"), "look at the data, or at what computes this input"),
        (Place("the input of the whole Net", "inf", "float32"), "look at the data"),
    ],
)
def test_advice_on_an_input(place, words):
    _, facts, advice = explain(evidence(loss="nan", input=place, gradient=GRADIENT))
    assert "{} was there already in {}, in {}".format(place.what, place.name, place.dtype) in facts
    assert words in advice
