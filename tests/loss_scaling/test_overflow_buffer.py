"""``_overflow_buf``, once a client has read it, where a ``scale_loss`` block ends with an error."""

import pytest
import torch
from helpers.automata import each_automaton, initialized, step

import ampcompat
from ampcompat import amp


@each_automaton
@pytest.mark.parametrize("overflows", [True, False])
def test_an_error_in_a_block_leaves_the_overflow_buffer_as_it_was(make_optimizer, overflows):
    model, optimizer = initialized(make_optimizer)
    buffer = ampcompat.current().scalers[0]._overflow_buf
    step(model, optimizer, overflows)
    with pytest.raises(ValueError), amp.scale_loss(model(torch.ones(1, 3)).float().sum(), optimizer):
        raise ValueError
    assert buffer.item() == overflows
    step(model, optimizer)
    assert not amp.step_was_skipped(optimizer)
    assert buffer.item() == 0
