"""``Audit``: what is a note and what is wrong; ``test_planted.py`` has the planted faults and their twins."""

import functools
import gc
import threading

import planted
import pytest
import torch
from helpers import loops
from planted import Rounding, audited, kept_average, mlp, train, wrong

from ampcompat import amp
from ampcompat.diagnostics.audit import audit_text
from ampcompat.diagnostics.audit.audit import Audit
from ampcompat.diagnostics.audit.repeated_steps import unit_in_last_place
from ampcompat.support.live_objects import all_objects
from ampcompat.support.torch_compat import features

pytestmark = pytest.mark.skipif(
    not features.is_version_within(oldest="2.4"), reason="tried from torch 2.4 on: torch.amp.GradScaler on a CPU"
)

HALF, FULL = torch.bfloat16, torch.float32


def notes(report):
    """Return the kinds of the notes."""
    return [each["kind"] for each in report["findings"] if not each["is_wrong"]]


def trained_with_amp(level, make, argv=(), **options):
    """Return a model that was trained at a level, and the report."""
    model = mlp(FULL)
    optimizer = make(model.parameters())
    amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)

    def run():
        for step in range(planted.STEPS):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loops.step(model(torch.randn(8, 16)).float().pow(2).mean(), optimizer)

    return model, audited(run, argv)


@pytest.mark.parametrize("lr", (1e-3, 1e-5))
@pytest.mark.parametrize("level", ("O2", "O5"))
def test_masters_of_amp_are_right(level, lr):
    model, report = trained_with_amp(level, functools.partial(torch.optim.AdamW, lr=lr), loss_scale=1.0)
    assert wrong(report) == []
    half, elements = {"O2": "float16", "O5": "bfloat16"}[level], sum(map(torch.numel, model.parameters()))
    dtypes = report["dtypes"]
    assert dtypes["weights"] == {half: elements} and dtypes["masters"] == {"float32": elements}
    shown = dict(audit_text.dtypes(dtypes))
    assert shown["weights"] == f"{half} ({elements:,}), masters float32" and shown["gradients"] == "float32"
    assert {each["weights"] for each in dtypes["activations"] if each["weights"]} == {(half,)}


@pytest.mark.parametrize("level", ("O1", "O2", "O4", "O5"))
def test_an_option_that_amp_does_is_right(level):
    assert wrong(trained_with_amp(level, functools.partial(torch.optim.SGD, lr=0.1), ["--fp16"])[1]) == []


def test_a_scaler_with_a_scale_of_its_own_is_right():
    class Scaler(torch.amp.GradScaler):
        def scale(self, outputs):
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(outputs.device)
            return outputs * self._scale

    model = mlp(FULL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = Scaler("cpu", init_scale=1.0)
    assert audited(lambda: train(model, optimizer, autocast=torch.float16, scaler=scaler))["findings"] == []


@pytest.mark.parametrize("how", ("masters", "remainders", "bytes", "kahan", "stochastic"))
@pytest.mark.parametrize("lr", (1e-3, 1e-4))
def test_optimizers_that_keep_what_rounding_loses_are_right(how, lr):
    model = mlp()
    assert wrong(audited(lambda: train(model, Rounding(model.parameters(), lr, how), steps=60))) == []


@pytest.mark.parametrize("lr", (1e-3, 1e-4))
def test_the_same_optimizer_that_rounds_to_nearest_is_not(lr):
    model = mlp()
    assert wrong(audited(lambda: train(model, torch.optim.SGD(model.parameters(), lr), steps=60))) == ["lost_updates"]


def test_large_updates_of_half_weights_are_a_note():
    model = torch.nn.Linear(16, 4).to(HALF)
    report = audited(lambda: train(model, torch.optim.SGD(model.parameters(), lr=0.5)))
    assert wrong(report) == []
    assert notes(report) == ["half_weights"]


def test_lost_updates_are_those_that_the_weight_does_not_show():
    model = torch.nn.Linear(2, 1, bias=False).to(HALF)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.001]]))

    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(1, 2, dtype=HALF)).sum().backward()
            optimizer.step()

    (layer,) = audited(run)["findings"][0]["layers"]
    assert layer["lost"] == 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_unit_in_the_last_place_is_the_distance_to_the_next_value(dtype):
    values = torch.cat([torch.randn(500), torch.randn(500) * 1e-6, torch.tensor([1.0, 2.0, 1023.0])]).to(dtype)
    following = torch.nextafter(values.abs(), torch.tensor(float("inf"), dtype=dtype))
    assert torch.equal(unit_in_last_place(values), following.float() - values.abs().float())


def test_between_steps_it_keeps_15_bytes_for_a_half_element():
    def bytes_of_tensors():
        storages = [each.untyped_storage() for each in all_objects(torch.Tensor)]
        return sum({each.data_ptr(): each.nbytes() for each in storages}.values())

    param = torch.nn.Parameter(torch.ones(1 << 16, dtype=HALF))
    optimizer = torch.optim.SGD([param], lr=1e-5)
    param.grad = torch.ones_like(param)
    gc.collect()
    before = bytes_of_tensors()
    with Audit([]):
        for _ in range(3):
            optimizer.step()
        assert 14.9 <= (bytes_of_tensors() - before) / param.numel() <= 15.1


def test_the_training_itself_is_bitwise_unchanged():
    def weights(run):
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Dropout(), torch.nn.Linear(8, 4)).to(HALF)
        run(lambda: train(model, Rounding(model.parameters(), 0.1, "stochastic")))
        return [param.clone() for param in model.parameters()], torch.rand(3)

    plain, drawn = weights(lambda run: run())
    observed, drawn_too = weights(audited)
    assert all(map(torch.equal, plain, observed)) and torch.equal(drawn, drawn_too)


def _scaled(within):
    model = mlp(FULL)
    scaler = None if within else torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return functools.partial(train, model, optimizer, autocast=HALF, scaler=scaler, within=within)


def test_a_scaler_of_bfloat16_and_backward_within_autocast_are_notes():
    assert notes(audited(_scaled(within=False))) == ["needless_scaler"]
    assert notes(audited(_scaled(within=True))) == ["backward_in_autocast", "step_in_autocast"]


def test_regions_that_ask_what_torch_supports_are_not_the_scripts():
    model = mlp(FULL)
    features.autocast_dtypes.cache_clear()

    def run():
        features.read()  # as the first amp.initialize of a process does
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)

    assert audited(run)["dtypes"]["autocast"] == []


def test_sums_of_half_gradients_are_a_note():
    assert "half_accumulation" in notes(audited(lambda: planted.accumulating(HALF)))
    assert "half_accumulation" not in notes(audited(lambda: planted.accumulating(FULL)))
    assert notes(audited(planted.adversaries)) == ["half_weights"]


ASKS_NOT = (["--fp16", "false"], ["--fp16=no"], ["--mixed_precision", "no"], ["--dtype", "float32"], ["--lr", "16"])


@pytest.mark.parametrize("argv", ASKS_NOT, ids=" ".join)
def test_options_that_ask_for_float32_are_right(argv):
    model = mlp(FULL)
    assert wrong(audited(lambda: train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2), argv)) == []


def test_an_optimizer_that_cannot_be_copied_is_a_note_with_the_reason():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer.state[model[0].weight]["lock"] = threading.Lock()
    report = audited(lambda: train(model, optimizer))
    assert notes(report) == ["half_weights"] and "lock" in report["findings"][0]["text"]


@pytest.mark.parametrize("steps", [0, 2])
def test_an_optimizer_that_cannot_step_in_float32_any_more_is_a_note_with_the_reason_and_no_step_counts(steps):
    class Picky(torch.optim.SGD):
        def step(self, closure=None):
            group = self.param_groups[0]
            group["steps"] = group.get("steps", 0) + 1
            if group["params"][0].dtype is FULL and group["steps"] > steps:
                raise TypeError("half only")
            return super().step(closure)

    model = mlp()
    report = audited(lambda: train(model, Picky(model.parameters(), lr=1e-4)))
    assert notes(report) == ["half_weights"] and report["repeated"] == 0
    assert "half only" in report["findings"][0]["text"]


def test_what_was_compared_before_an_optimizer_could_not_be_copied_any_more_counts():
    class Locks(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.state[self.param_groups[0]["params"][0]]["lock"] = threading.Lock()

    model = mlp()
    report = audited(lambda: train(model, Locks(model.parameters(), lr=1e-5), steps=30))
    assert wrong(report) == ["lost_updates"] and report["repeated"] == 5


@pytest.mark.parametrize(
    "how, dtype, expected",
    [
        ("lerp_", FULL, ["float32"]),
        ("foreach", HALF, ["bfloat16"]),
        (".data", HALF, ["bfloat16"]),
        ("new .data", FULL, ["float32"]),
        ("new tensors", FULL, ["float32"]),
        ("new copies", HALF, []),
        ("copy_", HALF, []),
        (".data is read", FULL, []),
    ],
)
def test_averages_of_weights_are_listed_and_copies_are_not(how, dtype, expected):
    report = audited(functools.partial(kept_average, dtype, how, decay=0.5, lr=0.02))
    assert report["dtypes"]["averages"] == expected


def test_what_the_audit_keeps_itself_is_no_average():
    report = audited(functools.partial(planted.decaying, HALF, lr=1e-4))
    assert report["dtypes"]["averages"] == []


@pytest.mark.parametrize("dtype", [HALF, FULL])
def test_a_second_model_that_begins_as_the_first_is_no_average(dtype):
    def run():
        first, second = mlp(dtype), mlp(dtype)
        for model in (first, second):
            train(model, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0))

    report = audited(run)
    assert report["dtypes"]["averages"] == [] and "half_average" not in wrong(report)


def test_an_averaged_model_is_listed():
    model = mlp(FULL)
    average = torch.optim.swa_utils.AveragedModel(model)
    with Audit([]) as audit:
        train(model, torch.optim.SGD(model.parameters(), lr=0.02), after=lambda step: average.update_parameters(model))
    assert audit.report()["dtypes"]["averages"] == ["float32"]


@pytest.mark.parametrize("kind, weight_decay, lr", [("AdamW", 0.0, 0.05), ("SGD", 0.01, 0.2), ("AdamW", 0.5, 0.05)])
def test_weight_decay_that_is_large_enough_or_part_of_the_gradient_is_right(kind, weight_decay, lr):
    report = audited(functools.partial(planted.decaying, HALF, kind, weight_decay, lr))
    assert wrong(report) == [] and notes(report) == ["half_weights"]


def test_a_weight_decay_that_rounding_undoes_is_counted_to_the_element():
    model = torch.nn.Linear(16, 4).bfloat16()
    with Audit([]) as audit:
        train(model, torch.optim.AdamW(model.parameters(), lr=0.022, weight_decay=0.1))
    lost = [bool(each * (1 - 0.022 * 0.1) == each) for param in model.parameters() for each in param.reshape(-1)]
    (found,) = audit.wrong
    assert found["kind"] == "lost_decay" and f"({100 * sum(lost) / len(lost):.3g} % of all" in found["text"]


@pytest.mark.parametrize("dtype, first, expected", [(HALF, 1e-6, True), (HALF, 0.02, False), (FULL, 1e-6, False)])
def test_a_warm_up_whose_first_steps_are_lost_is_a_note(dtype, first, expected):
    report = audited(functools.partial(planted.warming_up, dtype, first))
    assert ("lost_warm_up" in notes(report)) == expected
    assert wrong(report) == []


FIXTURE = """
import ampcompat, planted, pytest, torch

@pytest.fixture
def audited():
    with ampcompat.audit([]) as audit:
        yield
    assert not audit.wrong, audit

@pytest.mark.usefixtures("audited")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_trains(dtype):
    planted.decaying(dtype, lr=1e-4)
"""


def test_as_a_fixture_of_pytest_it_fails_the_test_with_its_report(tmp_path, capsys):
    (tmp_path / "test_train.py").write_text(FIXTURE)
    options = ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null", "-q"]
    assert pytest.main([*options, str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "2 passed, 1 error" in printed and "AdamW updates bfloat16 weights without float32 masters" in printed
