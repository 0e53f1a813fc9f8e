"""``explain``: the cause, the value with its scale, and advice that fits."""

import sys

import pytest

from ampcompat.observers.skipped_steps.skip_facts import COMPILED, ModelPart, NonFinite, OverflowFacts
from ampcompat.observers.skipped_steps.skip_messages import explain, keep_layers, number

BODY, INPUT = ModelPart("body"), ModelPart("head", is_input=True)
GRADIENT = NonFinite(ModelPart("body.weight"), "inf", "float16", 3.2)


def facts_with(**found):
    return OverflowFacts(**dict(dict(step=7, loss_id=0, scale=65536.0), **found))


def test_an_overflow_because_of_the_scale_names_its_numbers():
    cause, text, advice = explain(facts_with(param_gradient=GRADIENT))
    assert cause == "inf in the gradient of body.weight"
    assert text == (
        "The loss was finite. In the backward pass inf came first in the gradient of body.weight, at scale 65536; its "
        "largest unscaled absolute value before was 3.2, which is 2.1e+05 scaled, over float16's 65504."
    )
    assert advice.startswith("nothing.")


def test_a_gradient_that_was_small_before_is_compared_with_the_limit():
    small = GRADIENT._replace(max_before=0.001)
    _, text, advice = explain(facts_with(param_gradient=small, scale=1024.0, good_passes=100))
    assert "which is 1.02 scaled, within float16's 65504: this one was over 6.4e+04 times as large" in text
    assert advice.startswith("nothing, if it is rare")
    assert keep_layers() in advice


@pytest.mark.parametrize(
    "found, expected",
    [
        (dict(scale=8.0), "the scale is low already, so the unscaled gradients are too large: use O4 or O5"),
        (dict(scale=1024.0, skips_in_a_row=12), "lower scales did not help, so the unscaled gradients are too large"),
        (dict(scale=1024.0, is_persistent=True), "lower scales did not help, so the unscaled gradients are too large"),
        (dict(scale=64.0, is_persistent=True, is_min_scale=True), "the scale is at its minimum, so the unscaled"),
        (dict(dynamic=False), "loss_scale=16384, at which earlier gradients do not overflow, or loss_scale="),
        (dict(dynamic=False, scale=128.0), f"O4 or O5 (bfloat16 needs no loss scale), {keep_layers()}, or lower"),
        (dict(low_dtype="bfloat16", low_max=3.39e38, scale=1.0), "so the unscaled gradients are too large: lower"),
    ],
)
def test_advice_on_an_infinite_gradient(found, expected):
    assert expected in explain(facts_with(param_gradient=GRADIENT, **found))[2]


def test_a_nan_gradient_far_from_the_limit_is_a_derivative():
    value = NonFinite(ModelPart("stem"), "nan", "float16", 0.01)
    found = dict(output_gradient=value, param_gradient=GRADIENT, last_finite=ModelPart("mid"))
    _, text, advice = explain(facts_with(scale=256.0, **found))
    assert "the gradient at the output of stem, at scale 256; one module earlier, at the output of mid, it was" in text
    assert advice.startswith("check the backward pass of mid: nan comes from the derivative of a root")
    later = explain(facts_with(output_gradient=value, last_finite=ModelPart("mid"), scale=256.0, skips_in_a_row=3))[2]
    assert "nan, which lower scales did not change, comes" in later


def test_a_nan_gradient_near_the_limit_is_an_overflow_because_of_the_scale():
    value = NonFinite(ModelPart("stem"), "nan", "float16", 30.0)
    assert explain(facts_with(output_gradient=value, last_finite=ModelPart("mid")))[2].startswith("nothing.")


def test_gradients_that_are_nan_from_the_start_come_from_the_loss_function():
    _, text, advice = explain(facts_with(output_gradient=NonFinite(ModelPart("head"), "nan", "float16"), scale=2.0))
    assert text.endswith("at scale 2, straight from the loss function.")
    assert "backward pass of the loss function" in advice


@pytest.mark.parametrize(
    "value, expected",
    [
        (
            NonFinite(BODY, "inf", "float16", 900.0),
            f"exceeds the largest float16 (65504): use O4 or O5, whose bfloat16 reaches 3e38, or {keep_layers()}.",
        ),
        (NonFinite(BODY, "inf", "float32"), "body overflows in float32, so no opt level"),
        (NonFinite(BODY, "nan", "float16"), f"In float16 an eps under 6e-8 is 0: {keep_layers()}."),
        (
            NonFinite(BODY, "nan", "float32"),
            "from 0/0, inf - inf, the logarithm or root of a negative number.",
        ),
        (NonFinite(ModelPart("", "Net"), "inf", "float16"), "the whole Net exceeds the largest float16"),
    ],
)
def test_advice_on_an_output(value, expected):
    _, text, advice = explain(facts_with(loss="nan", output=value, param_gradient=GRADIENT))
    first = "In the forward pass {} came first from " + ("{}, in {}" if value.name.is_whole else "module {}, in {}")
    assert first.format(value.kind, value.name, value.dtype) in text
    assert expected in advice


def test_an_output_that_does_not_reach_the_loss_is_not_the_cause():
    cause, text, _ = explain(facts_with(output=NonFinite(ModelPart("mask"), "inf", "float16"), param_gradient=GRADIENT))
    assert cause == "inf in the gradient of body.weight"
    assert text.endswith("The output of mask contained inf, which did not reach the loss.")


def test_without_inf_or_nan_it_is_another_rank_or_unknown():
    assert "another rank overflowed" in explain(facts_with(world_size=2))[1]
    assert "every gradient that still exists" in explain(facts_with())[1]


def test_a_param_gradient_may_be_inf_because_of_another_rank():
    assert "It may come from another rank" in explain(facts_with(world_size=2, param_gradient=GRADIENT))[1]


def test_missing_outputs_are_mentioned():
    text = explain(facts_with(loss="nan", missing_outputs=COMPILED))[1]
    assert text.endswith("output was recorded: code compiled by torch.compile or TorchScript runs no hooks.")


@pytest.mark.parametrize("value, expected", [(3.0, "3"), (65504.0, "65504"), (0.158203, "0.158"), (3.4e38, "3.4e+38")])
def test_numbers_are_short(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize(
    "value, expected",
    [
        (
            NonFinite(INPUT, "inf", "float16"),
            "the largest float16 (65504): compute it from x.float()",
        ),
        (NonFinite(INPUT, "nan", "float16"), "check the data, and what computes this input"),
        (NonFinite(ModelPart("", "Net", is_input=True), "inf", "float32"), "check the data"),
    ],
)
def test_advice_on_an_input(value, expected):
    _, text, advice = explain(facts_with(loss="nan", input=value, param_gradient=GRADIENT))
    assert f"{value.kind} was there already in {value.name}, in {value.dtype}" in text
    assert expected in advice


def test_in_a_notebook_or_console_no_script_is_named(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as a worker of pytest-xdist
    assert keep_layers() == "keep layers in float32 (with keep_fp32 of amp.initialize)"
