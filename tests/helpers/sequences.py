"""Random sequences of actions by hypothesis, each within a session of amp."""

import os

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from helpers.networks import session_of

#: The number of sequences of a test, over all its settings; the suite runs few, and 10000 by hand find more.
SEQUENCES = int(os.environ.get("STATE_SEQUENCES", "200"))


#: Of the params of ``Linears``.
NAMES = ("a", "b", "c")
FACTOR = 2.0**-4  # of a loss: a scale of 2**16 itself is not a float16 number
subsets = st.sets(st.sampled_from(NAMES), min_size=1)
rare = st.integers(0, 5).map(lambda number: number == 5)


class Linears(torch.nn.Module):
    """The sum of products of inputs with params, by name: the gradient of a param is its input."""

    def __init__(self, weights):
        super().__init__()
        for name, values in zip(NAMES, weights):
            setattr(self, name, torch.nn.Parameter(torch.tensor([values])))

    def forward(self, inputs):
        return sum(torch.nn.functional.linear(x, getattr(self, name)) for name, x in sorted(inputs.items()))


class SessionMachine(RuleBasedStateMachine):
    """A state machine whose sequences are run within a session of ``setting``, a class attribute."""

    setting = None

    def __init__(self):
        super().__init__()
        self.context = session_of(self.setting)
        self.context.__enter__()

    def teardown(self):
        self.context.__exit__(None, None, None)


def run_sequences(machine, setting, settings_of_test):
    """Run one setting's part of ``SEQUENCES`` sequences of a ``SessionMachine``."""
    run_state_machine_as_test(
        type(machine.__name__ + setting.level, (machine,), {"setting": setting}),
        settings=settings(
            max_examples=-(-SEQUENCES // settings_of_test),
            stateful_step_count=20,
            derandomize=True,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
