"""``compare``: records every level of a tiny training in this process, and restores global state."""

import copy
import io
import random
import sys
import types

import numpy
import pytest
import torch
from helpers import loops

import ampcompat
from ampcompat import amp
from ampcompat.abtest import Report, Run, compare, log, to_text
from ampcompat.abtest.judging import summary
from ampcompat.abtest.recording import recorder
from ampcompat.engine.session import process_state
from ampcompat.errors import AmpError

STEPS = 6


def make_pair(seed=None):
    if seed is not None:
        torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def loss_of(model, size=5):
    x = torch.randn(size, 4)
    return (model(x).float() - x.float().sum(1, keepdim=True)).pow(2).mean()


def advance(model, optimizer, factor=1.0, passes=1):
    optimizer.zero_grad()
    for _ in range(passes):
        loss = loss_of(model) * factor
        loops.backward(loss, optimizer)
    optimizer.step()
    return loss.item()


def train(level=None, seed=None, steps=STEPS, seen=None, **options):
    model, optimizer = amp.initialize(*make_pair(seed), opt_level="O1", loss_scale=options.pop("loss_scale", 8.0))
    for _ in range(steps):
        loss = advance(model, optimizer, **options)
        if seen is not None:
            seen.append(loss)


def test_every_level_is_recorded(level):
    seen = []
    report = compare(lambda _: train(seen=seen), levels=[level], baseline=level, control=False)
    run = report.runs[level]
    assert (run.status, run.error) == ("ok", None)
    assert run.loss == [(step, 0, pytest.approx(loss, rel=1e-6)) for step, loss in enumerate(seen)]
    assert run.scale == [(step, 0, 8.0) for step in range(STEPS)]
    assert run.samples == [5] * STEPS
    assert len(run.step_seconds) == STEPS and min(run.step_seconds) > 0
    assert run.skipped == []
    assert (run.backend is not None) == (level in ("O1", "O4"))


def test_the_level_is_forced_and_the_random_numbers_are_the_same():
    draws, levels = [], []

    def draw(level):
        draws.append((random.random(), numpy.random.rand(), torch.rand(()).item()))
        train()
        levels.append((level, amp._amp_state.opt_properties.opt_level))

    before = random.getstate(), torch.get_rng_state()
    report = compare(draw, levels=("O1", "O2"), seed=7, control=False)
    assert levels == [("O0", "O0"), ("O1", "O1"), ("O2", "O2")]
    assert len(set(draws)) == 1
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert list(report.runs) == ["O0", "O1", "O2"]
    assert report.environment["seed"] == 7
    assert Report.from_json(report.to_json()) == report


def test_repeats_differ_even_where_the_training_seeds_itself():
    def seeded(level):
        for seed in (random.seed, numpy.random.seed, torch.manual_seed):
            seed(3)
        of_numpy = numpy.random.rand(), numpy.random.default_rng(3).random()
        draws.append((random.random(), torch.rand(()).item()) + of_numpy)
        train()

    draws, functions = [], (random.seed, numpy.random.seed, torch.manual_seed)
    report = compare(seeded, levels=("O0", "O1"), repeats=2)
    first, second = draws[:2], draws[2:]
    assert first[0] == first[1] and second[0] == second[1]
    assert all(one != other for one, other in zip(first[0], second[0]))
    assert len(report.runs["O0"].repeats) == 1
    assert report.runs["O0"].loss != report.runs["O0"].repeats[0].loss
    assert " \u00b1 " in to_text(report)
    assert (random.seed, numpy.random.seed, torch.manual_seed) == functions


def test_runs_end_after_the_requested_steps_whatever_the_training_catches():
    def catching(level):
        try:
            train(steps=50)
        except:  # noqa: E722  as scripts do
            raise ValueError("training failed") from None

    report = compare(catching, levels=["O0"], steps=3)
    assert report.runs["O0"].status == "stopped"
    assert len(report.runs["O0"].step_seconds) == 3


def test_a_failed_level_is_a_row_and_the_other_levels_still_run():
    def failing(level):
        train(steps=2)
        if level == "O1":
            raise ValueError("at O1\nand more")
        if level == "O2":
            raise SystemExit("no data")

    report = compare(failing, levels=("O0", "O1", "O2", "O3"))
    assert [run.status for run in report.runs.values()] == ["ok", "failed", "failed", "ok"]
    assert report.runs["O1"].error == "ValueError: at O1"
    assert report.runs["O1"].traceback.splitlines()[1].startswith(f'  File "{__file__}"')
    assert len(report.runs["O1"].loss) == 2
    assert report.runs["O2"].error == "no data"
    assert "failed" in to_text(report, 80)


@pytest.mark.parametrize(
    "train_nothing, says",
    [
        (lambda level: None, "amp.initialize was never called"),
        (lambda level: amp.initialize(*make_pair(), enabled=False), "enabled=False"),
        (lambda level: amp.initialize(*make_pair()), "before the first optimizer.step()"),
    ],
)
def test_a_training_without_anything_to_compare_fails_with_the_reason(train_nothing, says):
    report = compare(train_nothing, levels=["O0"])
    assert report.runs["O0"].status == "failed" and says in report.runs["O0"].error


def test_ctrl_c_ends_the_series_and_restores_everything():
    calls = []

    def interrupted(level):
        calls.append(level)
        train(steps=2)
        if level == "O1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(interrupted, levels=("O0", "O1", "O2"))
    assert calls == ["O0", "O1"]
    assert process_state.observers == [] and ampcompat.current() is None


def test_overflows_are_recorded_with_the_reduced_scale():
    options = dict(factor=float("inf"), loss_scale="dynamic", steps=3)
    run = compare(lambda level: train(**options), levels=["O1"], baseline="O1").runs["O1"]
    assert run.skipped == [0, 1, 2]
    assert [value for _, _, value in run.scale] == [65536.0, 32768.0, 16384.0]
    assert [finding.step for finding in run.findings] == [0, 1, 2]


def test_accumulated_passes_belong_to_their_step():
    run = compare(lambda level: train(passes=2, steps=2), levels=["O0"]).runs["O0"]
    assert [step for step, _, _ in run.loss] == [0, 0, 1, 1]
    assert run.samples == [10, 10]


def test_two_optimizers_make_one_step_unless_one_of_them_steps_twice():
    def adversaries(level):
        pairs = [make_pair(), make_pair()]
        models, optimizers = amp.initialize(*map(list, zip(*pairs)), num_losses=2, loss_scale=1.0)
        for index in (0, 1, 0, 1, 0, 0, 1):
            optimizers[index].zero_grad()
            loops.step(loss_of(models[index]), optimizers[index], loss_id=index)

    run = compare(adversaries, levels=["O0"]).runs["O0"]
    passes = [(step, loss_id) for step, loss_id, _ in run.loss]
    assert passes == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (3, 1)]
    assert len(run.step_seconds) == 4
    assert run.samples is None


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code:UserWarning")  # a warning of old torch
def test_a_recorded_model_can_be_copied_and_pickled_and_has_no_hooks_afterwards():
    models = []

    def copying(level):
        model, optimizer = amp.initialize(*make_pair())
        twin = copy.deepcopy(model)
        saved = io.BytesIO()
        torch.save(model, saved)
        assert b"ampcompat.observers" not in saved.getvalue() and b"recorder" not in saved.getvalue()
        optimizer.zero_grad()
        twin(torch.ones(99, 4))  # is not counted as samples
        advance(model, optimizer)
        models.append(model)

    assert compare(copying, levels=["O0"]).runs["O0"].samples == [5]
    assert not models[0]._forward_pre_hooks


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"levels": ["O9"]}, "Unknown opt_level 'O9'"),
        ({"steps": 0}, "steps must be a whole number from 1 up, not 0"),
        ({"repeats": None}, "repeats must be"),
        ({"dtypes": "half"}, "two floating dtypes"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_runs(wrong, says):
    with pytest.raises(AmpError, match=says):
        compare(lambda level: pytest.fail("it ran"), **wrong)


def test_the_baseline_gets_a_second_seed_unless_there_is_no_control():
    report = compare(lambda level: train(steps=2), levels=["O0", "O1"], memory=False)
    assert [len(run.repeats) for run in report.runs.values()] == [1, 0]
    report = compare(lambda level: train(steps=2), levels=["O0", "O1"], memory=False, control=False)
    assert [len(run.repeats) for run in report.runs.values()] == [0, 0]


def test_a_training_that_never_initializes_ends_the_series_after_its_first_run():
    calls = []
    report = compare(calls.append, levels=("O0", "O1", "O2"), baseline="O1")
    assert calls == ["O0"] and list(report.runs) == ["O0"]


def test_in_timed_steps_nothing_is_watched(monkeypatch):
    """By counting: tensor statistics are computed in watched steps alone, and only settled steps' times count."""
    from ampcompat.observers import activations, values

    calls, per_step, hooks = [], [], []

    def counted(tensor):
        calls.append(1)
        return original(tensor)

    original = activations.max_abs
    for module in (activations, values):
        monkeypatch.setattr(module, "max_abs", counted)

    def counting(level):
        model, optimizer = amp.initialize(*make_pair(), loss_scale=8.0)
        for _ in range(40):
            before = len(calls)
            advance(model, optimizer)
            per_step.append(len(calls) - before)
            hooks.append(len(model[0]._forward_hooks))  # those of the next step

    run = compare(counting, levels=["O2"], baseline="O2", control=False, memory=False).runs["O2"]
    watched = list(range(6)) + list(range(16, 26)) + list(range(36, 40))
    assert run.watched == watched == [step for step, count in enumerate(per_step) if count]
    assert [step + 1 for step, count in enumerate(hooks[:-1]) if count] == watched[1:]
    assert summary.steady_steps(run) == list(range(11, 16)) + list(range(31, 36))


def test_no_time_counts_right_after_a_slow_step():
    run = Run(step_seconds=[1.0] * 20, measured=[8])
    assert summary.steady_steps(run) == [6, 7, 14, 15, 16, 17, 18, 19]
    assert summary.steady_steps(Run(step_seconds=[1.0] * 4, measured=[1])) == []


def test_samples_per_second_and_step_time_agree():
    seconds = [9.0] * 6 + [0.5] * 14 + [8.0]  # slow steps count for neither
    run = Run(status="ok", step_seconds=seconds, samples=[32] * 21, loss=[(step, 0, 1.0) for step in range(21)])
    row = summary.summarize(Report(runs={"O0": run}))["O0"]
    assert row.seconds == 0.5 and row.rate == 64


def test_after_a_step_that_is_skipped_while_it_is_timed_the_next_ones_are_watched():
    def overflowing(level):
        model, optimizer = amp.initialize(*make_pair(), init_scale=8.0)
        for step in range(12):
            advance(model, optimizer, float("inf") if step in (7, 9) else 1.0)

    run = compare(overflowing, levels=["O2"], baseline="O2", control=False).runs["O2"]
    assert run.skipped == [7, 9] and [finding.step for finding in run.findings] == [7, 9]
    assert "although the outputs of all modules were finite" in run.findings[0].text
    assert run.findings[1].text.startswith("As in step 7: ")
    assert run.watched == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]


class OneBadBatch(torch.nn.Module):
    """A network that counts, drops and normalizes, and in which inputs over 100 become inf before the norm."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
        self.drop = torch.nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        is_large = x.detach().abs().max() > 100
        x = self.first(x)
        return self.last(self.drop(self.norm(x * float("inf") if is_large else x))) * (1 + 0.1 * (self.calls % 3))


def one_bad_batch(value):
    def training(level):
        torch.manual_seed(0)
        model = OneBadBatch()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer = amp.initialize(model, optimizer, init_scale=8.0, verbosity=0)
        for step in range(12):
            inputs = torch.randn(8, 4)
            if step == 7:
                inputs[0] = value
            optimizer.zero_grad()
            loops.step(model(inputs).float().pow(2).mean(), optimizer)

    return training


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize(
    "value, told",
    [
        (float("nan"), "nan was there already in the input of the whole OneBadBatch"),
        (200.0, "inf was there already in the input of norm"),
    ],
)
def test_the_cause_of_one_bad_batch_in_a_step_without_hooks_is_named_and_nothing_is_changed(level, value, told):
    diagnosed, plain = [
        compare(one_bad_batch(value), levels=[level], baseline=level, control=False, memory=False, diagnose=flag)
        for flag in (True, False)
    ]
    run = diagnosed.runs[level]
    assert run.skipped == [7] and 7 not in run.watched
    assert told in run.findings[0].text
    assert repr(run.loss) == repr(plain.runs[level].loss)


def test_metrics_are_recorded_at_their_steps_from_log_and_from_summary_writers(monkeypatch):
    class SummaryWriter:
        """As TensorBoard's, which need not be installed."""

        def add_scalar(self, tag, scalar_value, global_step=None):
            self.last = tag, scalar_value, global_step

    module = types.ModuleType("torch.utils.tensorboard.writer")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, module.__name__, module)
    plain = SummaryWriter.add_scalar

    def logging(level):
        model, optimizer = amp.initialize(*make_pair(), loss_scale=8.0)
        for step in range(3):
            log("accuracy", torch.tensor(step / 2))
            SummaryWriter().add_scalar("rate", step, step)
            advance(model, optimizer)

    run = compare(logging, levels=["O0"], control=False).runs["O0"]
    assert run.metrics == {"accuracy": [(0, 0.0), (1, 0.5), (2, 1.0)], "rate": [(0, 0.0), (1, 1.0), (2, 2.0)]}
    assert SummaryWriter.add_scalar is plain
    log("accuracy", 1.0)  # outside of a run it does nothing


def test_inside_a_session_it_is_an_error():
    with ampcompat.session("O0"):
        with pytest.raises(AmpError, match="open already"):
            compare(train)


def test_the_batch_size_is_read_from_the_arguments_of_a_model():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    for value, size in [(({}, {"a": [torch.ones(7, 1)]}), 7), (packed, 2), (torch.ones(()), None), (("text", 3), None)]:
        assert recorder._batch_size(value) == size


def test_without_an_observer_nothing_is_read_from_the_device(monkeypatch):
    """Losses are read by the recorder alone: a loop at a static scale, unobserved, reads none."""
    reads = []
    item = torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda self: reads.append(self) or item(self))
    model, optimizer = amp.initialize(*make_pair(), opt_level="O2", loss_scale=8.0, verbosity=0)
    for _ in range(2):
        loops.step(loss_of(model), optimizer)
    assert reads == []
