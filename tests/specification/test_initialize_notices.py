"""What ``initialize`` prints about arguments that do not do what they seem to."""

import pytest
import torch

import ampcompat
from ampcompat import amp


@pytest.mark.parametrize("enabled, says", [("O2", True), (True, False), (1, False)])
def test_a_level_in_the_place_of_enabled_is_named(enabled, says, capsys):
    with ampcompat.session():
        amp.initialize(torch.nn.Linear(1, 1), None, enabled, "O0")
        assert ("Write opt_level='O2'" in capsys.readouterr().out) is says
