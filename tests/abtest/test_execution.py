"""``compare(executor=…)``: the same runs on any engine; a lost worker costs one more try, then its run alone."""

import importlib.util
import os
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from helpers import forked, loops
from helpers.processes import ROOT, environment

from ampcompat import amp
from ampcompat.abtest import compare
from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.abtest.report_data import NEVER_INITIALIZED, Report, Run
from ampcompat.abtest.running import executors
from ampcompat.abtest.running.executors import Recorded, ends_series, run_all
from ampcompat.errors import AmpError

SCRIPTS = os.path.join(ROOT, "tests", "scripts")


def train(level):
    model = torch.nn.Linear(4, 1)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_scale=8.0)
    for _ in range(5):
        optimizer.zero_grad()
        loops.step(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer)


class LosingExecutor:
    """Runs at once; loses the worker of a run as often as ``losses`` says. What is submitted in between is recorded."""

    def __init__(self, losses):
        self.losses, self.submitted = dict(losses), []

    def submit(self, function, planned):
        future = Future()
        self.submitted.append(planned.label)
        if self.losses.get(planned.label, 0):
            self.losses[planned.label] -= 1
            future.set_exception(RuntimeError("worker\nlost"))
        else:
            future.set_result(function(planned))
        return future


def planned_runs(count):
    return [PlannedRun("O0", [], repeat=repeat) for repeat in range(count)]


def test_a_lost_run_is_tried_again_after_the_others_and_then_fails_alone():
    executor, ended = LosingExecutor({"O0": 1, "O0 seed 2": 2}), []
    run_all(executor, planned_runs(3), lambda planned: Recorded(Run(), {}, ""), lambda *args: ended.append(args))
    assert executor.submitted == ["O0", "O0 seed 2", "O0 seed 3", "O0", "O0 seed 2"]
    found = {planned.label: (recorded.run.status, recorded.run.error) for planned, recorded in ended}
    assert found["O0"] == found["O0 seed 3"] == ("ok", None)
    assert found["O0 seed 2"] == ("failed", "its worker was lost twice: RuntimeError: worker lost")


class RememberingExecutor(LosingExecutor):
    """Returns the same future for the same function with the same arguments, as Dask does."""

    def __init__(self, losses):
        super().__init__(losses)
        self.known = []  # (function, planned, future)

    def submit(self, function, planned):
        for each in self.known:
            if each[:2] == (function, planned):
                return each[2]
        self.known.append((function, planned, super().submit(function, planned)))
        return self.known[-1][2]


def test_the_second_try_is_another_task_than_the_first():
    ended = []
    run_all(
        RememberingExecutor({"O0": 1}), planned_runs(1), recorded_at_once, lambda _, recorded: ended.append(recorded)
    )
    assert [recorded.run.status for recorded in ended] == ["ok"]


def recorded_at_once(planned):
    return Recorded(Run(), {}, "")


@pytest.mark.parametrize(
    "row, error, is_over",
    [("O0", "ValueError", True), ("O1", "ValueError", False), ("O1", NEVER_INITIALIZED, True)],
)
def test_after_a_run_that_leaves_nothing_to_compare_no_others_begin(row, error, is_over):
    report, executor, ended = Report(), LosingExecutor({}), []

    def run(planned):
        return Recorded(Run(status="failed", error=error) if planned.level == row else Run(), {}, "")

    def on_end(planned, recorded):
        ended.append(planned.label)
        return not ends_series(report, planned, recorded.run)

    planned = [PlannedRun(level, []) for level in ("O0", "O1", "O2")]
    run_all(executor, planned, run, on_end, limit=1)
    assert executor.submitted == ended and ended[-1] == (row if is_over else "O2")


def test_an_error_of_ours_ends_the_series_and_cancels_what_waits():
    def refuse(planned):
        raise AmpError("refused")

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(AmpError, match="refused"):
            run_all(pool, planned_runs(50), refuse, lambda *args: pytest.fail("it ended"))


def test_the_coordinator_keeps_nothing_of_runs_that_have_ended_and_looks_once_per_run(monkeypatch):
    """By counting: 600 runs, of which at most as many futures are alive as were submitted and not ended."""
    alive, naps = set(), []
    monkeypatch.setattr(executors, "_wait", naps.append)

    class Counted(Future):
        def __init__(self):
            super().__init__()
            alive.add(id(self))

        def __del__(self):
            alive.discard(id(self))

    class Executor:
        def submit(self, function, planned):
            future = Counted()
            future.set_result(function(planned))
            return future

    most = []
    on_end = lambda planned, recorded: most.append(len(alive))  # noqa: E731
    run_all(Executor(), planned_runs(600), lambda planned: Recorded(Run(), {}, ""), on_end, limit=4)
    assert len(most) == 600 and max(most) <= 8 and naps == []


def test_functions_in_threads_have_the_losses_of_a_series_without_an_executor():
    given = {"levels": ("O0", "O2"), "repeats": 2, "memory": False, "verbosity": 0}
    with ThreadPoolExecutor(3) as pool:
        report = compare(train, executor=pool, **given)
    expected = compare(train, **given)
    assert list(report.runs) == list(expected.runs) and report.baseline == expected.baseline
    for level, run in expected.runs.items():
        assert report.runs[level].loss == run.loss
        assert report.runs[level].repeats[0].loss == run.repeats[0].loss
    known = set(expected.environment)
    assert {name: report.environment[name] for name in known} == expected.environment
    assert report.advice


def submitit_starts():
    """Return whether submitit finds its own executors: 1.5.4 looks plugins up in a dictionary that lacks them."""
    try:
        importlib.import_module("submitit.core.plugins").get_executors()
    except KeyError:
        return False
    return True


@pytest.mark.parametrize("engine", ["dask", "submitit"])
def test_a_real_engine(engine, tmp_path):
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed: it is in the extra `test`, from Python 3.9 on")
    if engine == "submitit" and not submitit_starts():
        pytest.skip("this submitit starts no jobs on Python 3.9 unless a package adds plugins to it")
    env = environment(PYTHONPATH=os.pathsep.join([ROOT, os.path.dirname(SCRIPTS), SCRIPTS]))
    done = forked.run(forked.script, os.path.join(SCRIPTS, "on_executors.py"), engine, tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
