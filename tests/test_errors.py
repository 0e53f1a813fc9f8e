"""Error messages for users: exceptions have Apex's types, and tracebacks end with a single frame of ampcompat."""

import traceback

import pytest
import torch

from ampcompat import amp, errors


@pytest.mark.parametrize(
    "kind, builtin",
    [
        (errors.AmpTypeError, TypeError),
        (errors.AmpValueError, ValueError),
        (errors.AmpNotImplementedError, NotImplementedError),
        (errors.GradientOverflowError, FloatingPointError),
    ],
)
def test_every_error_is_a_runtime_error_and_the_builtin_that_one_expects(kind, builtin):
    assert issubclass(kind, builtin) and issubclass(kind, RuntimeError) and issubclass(kind, errors.AmpError)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: amp.initialize(torch.nn.Linear(1, 1), opt_level="01", verbosity=0),
        lambda: amp.initialize("no model", verbosity=0),
        lambda: amp.initialize(torch.nn.Linear(1, 1).half(), verbosity=0),
        lambda: amp.scale_loss(torch.ones(()), None),
        lambda: amp.load_state_dict({}),
        lambda: amp.register_half_function(torch, "no_such_function"),
    ],
    ids=["level", "model", "half", "scale_loss", "load_state_dict", "register"],
)
def test_a_users_mistake_shows_one_frame_behind_the_users_own(mistake):
    with pytest.raises(errors.AmpError) as caught:
        mistake()
    frames = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [name for name in frames if "ampcompat" in name.replace("\\", "/").split("/")[-2:]] == [frames[-1]]
    assert caught.value.__suppress_context__
