"""Forecasts of planted causes: which levels will fail, where and why, and with which layers in float32 they work."""

import functools
import math

import pytest
import torch
from helpers import half_kernels
from trainings import Net, forecast, predictions, record, train

import ampcompat
from ampcompat.diagnostics.forecast.forecast_text import reasons

WORKS = dict.fromkeys(("O0", "O1", "O2", "O3", "O4", "O5"), "works")


def kinds(found, level):
    return {(each["module"], each["kind"]) for each in found["levels"][level]["findings"]}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)


def test_a_healthy_network_works_at_every_level_without_findings():
    found = forecast(Net())
    assert predictions(found) == WORKS
    assert all(each["findings"] == [] and each["keep_fp32"] == [] for each in found["levels"].values())
    assert [found["levels"][level]["safe_loss_scale"] for level in ("O0", "O4", "O5")] == [None] * 3


def test_activations_beyond_float16_fail_at_its_levels_and_the_module_is_named():
    found = forecast(Net(lambda x: torch.relu(x * torch.ones_like(x) * 1e6) / 1e6))
    assert predictions(found) == dict(WORKS, O1="keep_fp32", O2="keep_fp32", O3="keep_fp32")
    for level in ("O1", "O2", "O3"):
        assert ("body", "overflow") in kinds(found, level)
        assert "body" in found["levels"][level]["keep_fp32"]


@pytest.mark.parametrize("level", ("O1", "O2", "O3"))
def test_the_proposed_layers_let_the_level_train(level):
    body = lambda x: torch.relu(x * torch.ones_like(x) * 1e6) / 1e6  # noqa: E731
    kept = forecast(Net(body))["levels"][level]["keep_fp32"]
    for keep_fp32 in (None, kept):
        torch.manual_seed(3)
        model, losses = Net(body), []
        with ampcompat.session(level, verbosity=0):
            loss = lambda output, x: losses.append((output - x[:, :1]).pow(2).mean()) or losses[-1]  # noqa: E731
            train(model, loss=loss, keep_fp32=keep_fp32)
        assert torch.isfinite(losses[-1]).item() == (keep_fp32 is not None)


@pytest.mark.parametrize("limit", (torch.tanh, torch.sigmoid, functools.partial(torch.clamp, min=-6, max=6)))
def test_an_overflow_that_is_bounded_afterwards_is_no_fault(limit):
    found = forecast(Net(lambda x: limit(x * 1e6) * 0.1 + torch.relu(x)))
    assert predictions(found) == WORKS


def test_an_overflow_that_the_loss_does_not_depend_on_is_no_fault():
    seen = []

    def body(x):
        seen.append((x * 1e8).sum())
        return torch.relu(x)

    assert predictions(forecast(Net(body))) == WORKS


def test_inputs_beyond_float16_cannot_be_mended_where_the_model_casts_them():
    found = forecast(
        torch.nn.Sequential(torch.nn.BatchNorm1d(6), Net()),
        inputs=lambda: torch.randn(16, 6) * 1e6,
        loss=lambda output, x: (output - x[:, :1] / 1e6).pow(2).mean(),
    )
    assert predictions(found) == dict(WORKS, O2="fails", O3="fails")


def test_a_norm_by_hand_needs_float32_only_where_the_table_does_not_give_it():
    found = forecast(Net(lambda x: x * torch.rsqrt((x * 1e3).pow(2).mean(-1, keepdim=True) + 1.0) * 1e3))
    assert predictions(found)["O1"] == "works"
    assert predictions(found)["O2"] == "keep_fp32"
    assert any(module == "body" for module, _ in kinds(found, "O2"))


def test_an_epsilon_that_becomes_0_is_named():
    def body(x):
        x = x * (torch.arange(16)[:, None] > 3)  # rows of zeros
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8)

    found = forecast(Net(body))
    assert ("body", "epsilon") in kinds(found, "O2")
    assert predictions(found)["O5"] == "works"  # bfloat16 has the exponents of float32


@pytest.mark.skipif(not half_kernels.steps_adam_in(torch.float16), reason="this torch has no Adam in float16 on a CPU")
def test_the_epsilon_of_adam_fails_in_half_weights_alone():
    model = Net()
    found = forecast(model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2))
    assert dict(predictions(found), O3="works") == WORKS
    assert {kind for _, kind in kinds(found, "O3")} == {"epsilon"}
    told = found["details"]["levels"]["O3"]
    assert reasons(found["levels"]["O3"], told) == ["Adam's eps of 1e-08 is 0 in float16"]


def test_updates_under_half_a_unit_of_the_last_place_are_lost_without_master_weights():
    model = Net()
    with torch.no_grad():
        model.head.bias.fill_(100.0)
    optimizer = torch.optim.SGD([model.head.bias], lr=5e-3)
    loss = lambda output, x: (output - 103.0).abs().mean()  # noqa: E731
    found = forecast(model, steps=50, optimizer=optimizer, loss=loss)
    assert ("head", "lost_updates") in kinds(found, "O3")
    assert not any(kind == "lost_updates" for level in ("O1", "O2", "O5") for _, kind in kinds(found, level))


def test_gradients_that_no_first_scale_saves_underflow():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e14)
    found = forecast(
        model, steps=30, optimizer=optimizer, loss=lambda output, x: (output - x[:, :1]).pow(2).mean() * 1e-15
    )
    assert [predictions(found)[level] for level in ("O1", "O2", "O4", "O5")] == ["fails", "fails", "works", "works"]
    assert {kind for _, kind in kinds(found, "O1")} == {"underflow"}


@pytest.mark.parametrize("scale, expected", ((2.0**24, "fails"), (128.0, "works")))
def test_a_static_scale_of_the_script_counts(scale, expected):
    found = forecast(Net(), loss_scale=scale)
    assert predictions(found)["O2"] == expected
    assert 128.0 <= found["levels"]["O2"]["safe_loss_scale"] < 2.0**24


def test_the_safe_scale_is_the_largest_at_which_no_gradient_overflows():
    def parts():
        model = Net()
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=5e-6), "loss": large}

    large = lambda output, x: (output - x[:, :1]).pow(2).mean() * 1e4  # noqa: E731
    found = forecast(**parts())
    safe, skips = found["levels"]["O2"]["safe_loss_scale"], found["details"]["levels"]["O2"]["skips"]
    for scale, overflows in ((safe / 2, False), (safe * 8, True)):  # other batches differ by as much
        torch.manual_seed(3)
        with ampcompat.session("O2", verbosity=0) as session:
            train(loss_scale=scale, skip_static_overflow=True, **parts())
            assert (session.scalers[0].skips_in_a_row > 0) == overflows
    with ampcompat.session("O2", verbosity=0) as session:
        torch.manual_seed(3)
        train(**parts())
        assert session.scalers[0].loss_scale() == pytest.approx(2.0 ** (16 - skips), rel=0.51)


def test_a_float32_tensor_among_half_weights_is_no_error_but_its_product_is_rounded():
    class State(torch.nn.Module):
        def __init__(self, scale=1.0):
            super().__init__()
            self.scale, self.cell = scale, torch.nn.Linear(32, 16)

        def forward(self, x):
            state = torch.ones(16, 16) * self.scale
            return torch.relu(self.cell(torch.cat([x, state], -1)) / self.scale)

    found = forecast(Net(State()))
    assert [predictions(found)[level] for level in ("O1", "O2", "O3", "O4", "O5")] == ["works"] * 5
    found = forecast(Net(State(scale=1e6)))
    assert ("body.cell", "overflow") in kinds(found, "O2") and predictions(found)["O5"] == "works"


def test_a_number_that_float16_cannot_hold_is_no_error():
    found = forecast(Net(lambda x: torch.softmax(x.masked_fill(x > 1, -1e9), -1)))
    assert [predictions(found)[level] for level in ("O1", "O2", "O3", "O4", "O5")] == ["works"] * 5


def test_rounding_that_leaves_nothing_of_a_difference_is_foreseen():
    found = forecast(Net(lambda x: (torch.relu(x) + 1e5 / 2) - 1e5 / 2))
    assert ("body", "reduction") in kinds(found, "O2") and ("body", "reduction") in kinds(found, "O5")
    assert found["levels"]["O2"]["keep_fp32"] == ["body"]


def test_a_run_that_diverges_in_float32_is_one_clear_error():
    events, _ = record(lambda: train(Net(), loss=lambda output, x: (output * math.inf).mean()), steps=12)
    (told,) = [event["missing"] for event in events if "missing" in event]
    assert "in float32 already" in told


def test_one_batch_with_large_gradients_between_the_recorded_steps_is_no_error():
    batches = iter(range(100))
    inputs = lambda: torch.randn(16, 6) * (1e5 if next(batches) == 7 else 1.0)  # noqa: E731
    loss = lambda output, x: (output - x[:, :1]).abs().mean()  # noqa: E731
    found = forecast(Net(), steps=50, inputs=inputs, loss=loss)
    assert found["details"]["levels"]["O2"]["skips"] >= 1


def test_layers_that_the_script_keeps_in_float32_are_not_found_again():
    body = lambda x: torch.relu(x * torch.ones_like(x) * 1e6) / 1e6  # noqa: E731
    kept = forecast(Net(body))["levels"]["O2"]["keep_fp32"]
    assert predictions(forecast(Net(body), keep_fp32=kept))["O2"] == "works"
