"""``hysteresis``: the scale is lowered at the n-th overflow since it last grew; every overflow skips its step."""

import pytest
from helpers.automata import initialized, on_host, step

from ampcompat import amp

#: By step: whether it overflows, and the scale after it, with hysteresis 2 and growth after 2 good steps.
HISTORY = [
    (True, 8.0),  # the first overflow is only counted
    (True, 4.0),
    (True, 2.0),  # and so on, as the scale has not grown since
    (False, 2.0),
    (False, 4.0),  # growth: the count begins again
    (True, 4.0),
    (False, 4.0),
    (True, 2.0),  # good steps in between do not matter
]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_overflows_count_from_the_last_growth(level):
    model, optimizer = initialized(on_host, opt_level=level, init_scale=8.0, growth_interval=2, hysteresis=2)
    for overflows, expected in HISTORY:
        step(model, optimizer, overflows)
        assert amp.step_was_skipped(optimizer) == overflows
        assert amp.state_dict()["loss_scaler0"]["loss_scale"] == expected
