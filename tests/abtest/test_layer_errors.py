"""Errors of layers against float32, and the search for the layers to keep in float32, with planted layers."""

import math

import pytest
import torch
from helpers import precision

from ampcompat import amp
from ampcompat.abtest import Report, Run, to_text
from ampcompat.abtest.judging import keep_fp32_search
from ampcompat.abtest.judging.verdict import ACCEPTED, judge
from ampcompat.abtest.recording import layer_errors
from ampcompat.abtest.running import in_process
from ampcompat.cli.ab_find_keep_fp32 import find

pytestmark = pytest.mark.skipif(precision.IS_STAND_IN, reason="float32, which stands in for half, has no such errors")


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


def train_with(*bad, init_scale=256.0, **options):
    """Return a training whose network has the planted layers ``bad`` among others."""

    def train(level):
        named = [("first", torch.nn.Linear(8, 16)), ("act", torch.nn.Tanh())]
        named += [(f"bad{index}", Planted(PLANTED[name])) for index, name in enumerate(bad)]
        named += [("drop", torch.nn.Dropout(0.05)), ("last", torch.nn.Linear(16, 1))]
        model = torch.nn.Sequential()
        for name, module in named:
            model.add_module(name, module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = amp.initialize(model, optimizer, init_scale=init_scale, verbosity=0, **options)
        for _ in range(80):
            x = torch.randn(32, 8)
            optimizer.zero_grad()
            loss = (model(x).float() - x.sum(1, keepdim=True) / 4).pow(2).mean() + 0.1
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()

    return train


def run_at(train, runs, **options):
    """Return the report of some runs."""
    report = Report()
    options = in_process.RunOptions(verbosity=0, diagnose=False, memory=False, **options)
    in_process.run_levels(report, train, runs, None, 0, options)
    return report


@pytest.mark.parametrize("bad", [["overflows"], ["cancels"], ["cancels", "underflows"]], ids="+".join)
def test_planted_layers_rank_first_and_are_found(bad):
    train = train_with(*bad)
    report = run_at(train, [("O0", 0), ("O0", 1), ("O2", 0)], layers=True)
    planted = {f"bad{index}" for index in range(len(bad))}
    ranking = keep_fp32_search.ranking(report.runs["O2"])
    assert {name for name, _, _ in ranking[: len(bad)]} == planted
    assert sum(share for name, _, share in ranking if name in planted) > 0.99
    assert judge(report)["O2"].kind != ACCEPTED

    def run_candidate(names):
        return run_at(train, [("O2", 0)], initialize={"keep_fp32": names}).runs["O2"]

    told = find(report, "O2", run_candidate)
    assert told.startswith("O2 is accepted with keep_fp32=[") and all(name in told for name in planted), told


def test_at_o0_no_layer_differs_from_float32_and_the_training_is_the_same():
    compared, plain = [run_at(train_with(), [("O0", 0)], layers=flag).runs["O0"] for flag in (True, False)]
    assert compared.loss == plain.loss
    assert set(dict(compared.layers).values()) == {0.0} and set(dict(compared.gradients).values()) == {0.0}
    assert set(dict(compared.gradients)) == {"first.weight", "first.bias", "last.weight", "last.bias"}


def test_where_a_compared_step_overflows_gradients_are_compared_in_the_next_that_does_not():
    run = run_at(train_with(init_scale=2.0**22), [("O2", 0)], layers=True).runs["O2"]
    assert 3 in run.skipped
    assert set(dict(run.gradients)) == {"first.weight", "first.bias", "last.weight", "last.bias"}
    assert max(dict(run.gradients).values()) < 0.01


def test_gradients_that_overflow_in_every_compared_step_are_said_to_overflow():
    train = train_with(init_scale=2.0**24, min_loss_scale=2.0**24)
    run = run_at(train, [("O2", 0)], layers=True).runs["O2"]
    assert len(run.skipped) == 80 and max(dict(run.gradients).values()) == math.inf
    text = to_text(Report(runs={"O0": Run(), "O2": run}))
    assert " overflows\n" in text and "inf" not in text


def test_errors_of_gradients_are_those_of_half(level):
    run = run_at(train_with(), [("O0", 0), (level, 0)] if level != "O0" else [("O0", 0)], layers=True).runs[level]
    largest = max(dict(run.gradients).values())
    limit = {"O0": 0.0, "O1": 0.01, "O2": 0.01, "O3": 0.05, "O4": 0.1, "O5": 0.3}[level]
    assert largest <= limit and (largest > 0.0) == (level != "O0")


@pytest.mark.parametrize(
    "value, expected, error", [([1.0, 1.0], [1.0, 1.0], 0.0), ([3.0, 4.0], [0.0, 0.0], math.inf), ([0.0], [2.0], 1.0)]
)
def test_the_relative_error_is_that_of_norms(value, expected, error):
    assert layer_errors.relative_error(torch.tensor(value), torch.tensor(expected)) == error
    assert layer_errors.relative_error(torch.tensor([math.nan]), torch.tensor([1.0])) == math.inf


def test_the_search_finds_a_smallest_set():
    tried = []

    def is_accepted(kept):
        tried.append(list(kept))
        return {"b", "d"} <= set(kept)

    assert keep_fp32_search.search("abcdefgh", is_accepted) == ["b", "d"]
    assert len(tried) < 10
    assert keep_fp32_search.search("abc", lambda kept: False) is None
    assert keep_fp32_search.argument(["b", "d"]) == 'keep_fp32=["b", "d"]'


def test_the_table_of_layers_has_shares_and_layers_that_were_not_reached_come_last():
    run = Run(layers=[("a", 0.003), ("late", math.nan), ("b", 0.004)], gradients=[("a.weight", 0.5)])
    assert [(name, share) for name, _, share in keep_fp32_search.ranking(run)] == [
        ("b", pytest.approx(0.64)),
        ("a", pytest.approx(0.36)),
        ("late", 0.0),
    ]
    text = to_text(Report(runs={"O0": Run(), "O2": run}))
    assert "each layer at O2" in text and "64 %" in text and "gradients at O2" in text
