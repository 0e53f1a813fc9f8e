"""Causes that are planted in a small network; ``benchmarks/diagnoses.py`` has more of them, at each level."""

import os
import sys

import pytest
import torch
from helpers import compilers, loops, precision
from helpers.processes import ROOT

import ampcompat
from ampcompat import amp
from ampcompat.trace.skipped_steps.diagnosis import add_diagnosis

sys.path.insert(0, os.path.join(ROOT, "benchmarks"))
diagnoses = pytest.importorskip("diagnoses", reason="the benchmarks are not part of this installation")

needs_half = pytest.mark.skipif(precision.IS_STAND_IN, reason="float32, which stands in for half, does not overflow")


@needs_half
@pytest.mark.parametrize(
    "name, level",
    [
        ("input of 1e5, inf by the cast", "O1"),
        ("input of 1e5, inf by the cast", "O2"),
        ("nan in a weight", "O2"),
        ("nan in a weight", "O3"),
        ("Adam's eps is 0 in float16", "O3"),
        ("Adam's eps is 0 in float16", "O2"),
    ],
)
def test_a_planted_cause_is_named(name, level):
    cause = diagnoses.CAUSES[name]
    text = diagnoses.explanation(cause, level)
    assert diagnoses.is_right(cause, level, text), text


def test_a_step_without_a_call_of_the_model_does_not_blame_the_compiler(monkeypatch):
    if "torch._dynamo" in sys.modules and not compilers.TELLS_THAT_IT_TRACES:
        pytest.skip("with its compiler imported, this torch is altered when an optimizer is made")
    weight = torch.nn.Parameter(torch.ones(2))
    with ampcompat.session("O2", diagnose=True, verbosity=0) as session:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        amp.initialize(torch.nn.Linear(1, 1), optimizer)
        # Not before: to make an optimizer imports it with torch 2.3, which leaves two copies of it.
        monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
        loops.step((weight * float("inf")).sum(), optimizer)
        (text,) = [text for _, text, *_ in session.observers[0].findings]
    assert "none of the initialized modules was called" in text and "compile" not in text


@pytest.mark.parametrize("is_diagnosed_run", [True, False])
def test_a_diagnosed_run_speaks_whatever_verbosity_the_script_passes(capsys, is_diagnosed_run):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampcompat.session("O2", verbosity=0) as session:
        model, optimizer = amp.initialize(model, optimizer, verbosity=0, loss_scale="dynamic")
        add_diagnosis(session, prints_summary=is_diagnosed_run)
        loops.step(model(torch.ones(1, 2)).sum() * float("inf"), optimizer)
    assert ("was skipped" in capsys.readouterr().out) == is_diagnosed_run
