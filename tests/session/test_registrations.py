"""Functions of users that are registered to be cast."""

import datetime

import pytest
import torch

import ampcompat
from ampcompat import amp
from ampcompat.engine.session import process_state
from ampcompat.errors import AmpTypeError


def double(x):
    return x * 2


class Functions:
    """An owner of functions."""

    double = staticmethod(double)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_function_that_cannot_be_replaced_is_refused_and_not_registered(is_open):
    if is_open:
        amp.initialize(torch.nn.Linear(2, 2), opt_level="O1", verbosity=0)
    with pytest.raises(AmpTypeError, match="date.isoformat cannot be replaced"):
        amp.register_half_function(datetime.date, "isoformat")
    assert process_state.registrations == []
    ampcompat.reset()
    amp.initialize(torch.nn.Linear(2, 2), opt_level="O1", verbosity=0)


def test_a_registration_whose_casts_cannot_be_opened_is_dropped(monkeypatch):
    def fail(self):
        raise ZeroDivisionError

    amp.initialize(torch.nn.Linear(2, 2), opt_level="O1", verbosity=0)
    monkeypatch.setattr(type(ampcompat.current().process_casts), "reopen", fail)
    with pytest.raises(ZeroDivisionError):
        amp.register_half_function(Functions, "double")
    assert process_state.registrations == []


def test_registering_without_a_session_leaves_the_function_as_it_was():
    before = vars(Functions)["double"]
    amp.register_half_function(Functions, "double")
    assert vars(Functions)["double"] is before and len(process_state.registrations) == 1
