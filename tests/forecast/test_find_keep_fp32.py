"""The search of ``ab --find-keep-fp32``, with planted layers."""

import pytest
import torch
from helpers import loops
from trainings import record

from ampcompat import amp
from ampcompat.abtest import Report
from ampcompat.abtest.judging.verdict import ACCEPTED, judge
from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.abtest.running import in_process
from ampcompat.cli.ab_find_keep_fp32 import find, search
from ampcompat.diagnostics.forecast.forecast_text import argument, ranking


class Planted(torch.nn.Module):
    """A layer that is about the identity in float32, and something else in float16."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = torch.nn.Parameter(torch.ones(16)), function

    def forward(self, x):
        return self.function(x * self.weight)


PLANTED = {
    "overflows": lambda x: (((x * 1e3) ** 2 + 1).sum(-1, keepdim=True) / 16).sqrt() * 1e-3 + x,
    "cancels": lambda x: (x + 512.0) - 512.0,
    "underflows": lambda x: (x * 1e-9) * 1e9,
}


def train_with(*bad):
    """Return a training whose network has the planted layers ``bad`` among others."""

    def train(level):
        named = [("first", torch.nn.Linear(8, 16)), ("act", torch.nn.Tanh())]
        named += [(f"bad{index}", Planted(PLANTED[name])) for index, name in enumerate(bad)]
        named += [("drop", torch.nn.Dropout(0.05)), ("last", torch.nn.Linear(16, 1))]
        model = torch.nn.Sequential()
        for name, module in named:
            model.add_module(name, module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = amp.initialize(model, optimizer, init_scale=256.0, verbosity=0)
        for _ in range(80):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            loss = (model(x).float() - x.sum(1, keepdim=True) / 4).pow(2).mean() + 0.1
            loops.step(loss, optimizer)

    return train


def run_at(train, runs, **options):
    """Return the report of some runs."""
    report = Report()
    options = dict(verbosity=0, diagnose=False, memory=False, **options)
    for level, repeat in runs:
        planned = PlannedRun(level, [], repeat, level, options=options)
        report.add(level, repeat, in_process.run_function(train, planned).run)
    return report


@pytest.mark.parametrize("bad", [["overflows"], ["cancels"], ["cancels", "underflows"]], ids="+".join)
def test_planted_layers_rank_first_and_are_found(bad):
    train = train_with(*bad)
    report = run_at(train, [("O0", 0), ("O0", 1), ("O2", 0)])
    planted = {f"bad{index}" for index in range(len(bad))}
    assert judge(report)["O2"].kind != ACCEPTED
    events, _ = record(lambda: train("O0"), 50)
    (forecast,) = [event["forecast"] for event in events if "forecast" in event]
    assert set(ranking(forecast, "O2")[: len(bad)]) == planted

    def run_candidate(names):
        return run_at(train, [("O2", 0)], initialize={"keep_fp32": names}).runs["O2"]

    told = find(report, "O2", lambda: forecast, run_candidate)
    assert told.startswith("O2 is accepted with keep_fp32=[") and all(name in told for name in planted), told


def test_the_search_finds_a_smallest_set():
    tried = []

    def is_accepted(kept):
        tried.append(list(kept))
        return {"b", "d"} <= set(kept)

    assert search("abcdefgh", is_accepted) == ["b", "d"]
    assert len(tried) < 10
    assert search("abc", lambda kept: False) is None
    assert argument(["b", "d"]) == 'keep_fp32=["b", "d"]'
