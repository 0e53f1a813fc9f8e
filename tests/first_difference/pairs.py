"""Small trainings for the tests of the first difference, and the comparison of two of them in this process."""

import contextlib
import json
import tempfile

import pytest
import torch

from ampcompat import amp
from ampcompat.abtest.recording import forced_run
from ampcompat.abtest.recording.recorder import Recorder
from ampcompat.abtest.running import seeding
from ampcompat.tools.first_difference import observed_step

if not observed_step.is_supported():
    pytest.skip(f"the first difference needs torch {observed_step.OLDEST}", allow_module_level=True)

WIDTH = 32

#: Whether the run that goes on is the compared one.
state = {"compared": False}


class Body(torch.nn.Module):
    """A function of (x, weight) as a module; in the compared run another one, if there is one."""

    def __init__(self, function, other=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.functions = function, other or function

    def forward(self, x):
        return self.functions[state["compared"]](x, self.weight)


class Net(torch.nn.Module):
    """A linear layer, a body, and another linear layer."""

    def __init__(self, body):
        super().__init__()
        self.first, self.body, self.last = torch.nn.Linear(8, WIDTH), body, torch.nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.last(self.body(self.first(x)))


def train(make, level, steps=2, passes=1, batch=lambda: 16, **arguments):
    """Train a model by SGD on random numbers; ``arguments`` are those of ``initialize``."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **arguments)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            x = torch.randn(batch(), 8)
            loss = (model(x) - x[:, :4]).pow(2).mean()
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
        optimizer.step()


def compared(make, level, monkeypatch, plant=contextlib.nullcontext, backend=None, limit=1 << 30, **options):
    """Train in float32 and at a level, the latter within ``plant()``, and return what the comparison found."""
    with tempfile.TemporaryDirectory() as folder:
        once(make, "O0", "reference", level, monkeypatch, folder, limit, backend, options)
        monkeypatch.setitem(state, "compared", True)
        try:
            with plant():
                return once(make, level, "compared", level, monkeypatch, folder, limit, backend, options)
        finally:
            monkeypatch.setitem(state, "compared", False)


def once(make, level, role, row, monkeypatch, folder, limit, backend, options):
    """Do one of the two runs, and return what its observer found."""
    task = {"role": role, "folder": folder, "step": 1, "level": row, "initialize": {}, "limit": limit}
    monkeypatch.setenv("AMPCOMPAT_FIRST_DIFFERENCE", json.dumps(task))
    events = []
    recorder = Recorder(2, events.append)
    wanted = {"verbosity": 0, "diagnose": False, "memory": False, "backend": backend}
    watched = forced_run.RunOptions(watch=observed_step.__name__, **wanted)
    seeding.seed_all(0, 0)
    with seeding.restored(), forced_run.recorded_at(level, recorder, watched):
        end = forced_run.run_to_end(recorder, lambda: train(make, level, **options), ())
    assert end["end"] in ("ok", "stopped"), end.get("traceback")
    return [event["first_difference"] for event in events if "first_difference" in event][-1]


def named(found):
    """Return the module, op and direction of what is named; None for nothing."""
    first = found["first"]
    return None if first is None else (first["module"], first["op"], first["direction"])
