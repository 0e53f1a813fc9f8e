"""Which methods of its observers a session calls, and when."""

import pytest
import torch
from helpers import loops

import ampcompat
from ampcompat import amp
from ampcompat.engine.session import process_state
from ampcompat.support.observer_interface import Observer


class CallRecorder(Observer):
    """Records the calls of its methods."""

    def __init__(self):
        self.calls = []

    def initialized(self, session, models, optimizers):
        self.calls.append(("initialized", len(models), len(optimizers)))

    def before_backward(self, backward):
        self.calls.append(("before_backward", backward.loss_id, backward.overflow_check))

    def after_backward(self, backward):
        self.calls.append(("after_backward", backward.loss_id, backward.overflow_check.overflowed()))

    def step_skipped(self, session, loss_id, scaler):
        self.calls.append(("step_skipped", loss_id))

    def before_step(self, adapter):
        self.calls.append(("before_step",))

    def after_step(self, adapter):
        self.calls.append(("after_step", adapter.skips.was_last_skipped()))

    def closed(self, session):
        self.calls.append(("closed",))


def train(level, overflows):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, loss_scale="dynamic", init_scale=8.0, verbosity=0)
    loss = model(torch.ones(2, 3)).sum() * (float("inf") if overflows else 1.0)
    loops.step(loss, optimizer)


@pytest.mark.parametrize("overflows", [False, True])
def test_the_methods_of_an_observer_are_called_in_order(level, overflows):
    recorder = CallRecorder()
    with ampcompat.session(level, observers=[recorder], verbosity=0):
        train(level, overflows)
    expected = [("initialized", 1, 1), ("before_backward", 0, None), ("after_backward", 0, overflows), ("before_step",)]
    assert recorder.calls == expected + [("step_skipped", 0)] * overflows + [("after_step", overflows), ("closed",)]


def test_process_wide_observers_are_added_to_every_new_session(monkeypatch):
    recorder = CallRecorder()
    monkeypatch.setattr(process_state, "observers", [recorder])
    train("O1", False)
    ampcompat.reset()
    assert recorder.calls[0] == ("initialized", 1, 1)
    assert recorder.calls[-1] == ("closed",)
