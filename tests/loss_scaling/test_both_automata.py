"""The loss scale on the host and the one on the device are the same, from any scale and count that a script sets."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from helpers import loops
from helpers.automata import each_automaton, initialized, on_host, step
from helpers.networks import ScaleReference

import ampcompat
from ampcompat import amp
from ampcompat.engine.loss_scaling.loss_scaler import LossScaler


def load(scale, unskipped=0):
    amp.load_state_dict({"loss_scaler0": {"loss_scale": scale, "unskipped": unskipped}})


def numbers():
    return amp.state_dict()["loss_scaler0"]


@each_automaton
@pytest.mark.parametrize("opt_level", ["O1", "O2"])
@hypothesis.given(
    pattern=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=10),
    start=st.tuples(st.sampled_from([2.0**8, 2.0**10, 2.0**12, 2.0**14]), st.integers(0, 5)),
    bounds=st.sampled_from([(None, 2.0**24), (2.0**9, 2.0**11), (2.0**10, 2.0**10)]),
)
@hypothesis.example([(False, False)] * 3, (1024.0, 5), (None, 1024.0))
@hypothesis.example([(False, True)] * 2 + [(True, True)] + [(False, True)] * 7, (8192.0, 0), (None, 1024.0))
@hypothesis.example([(False, True)] * 2 + [(True, True)] * 2 + [(False, True)], (16.0, 0), (1024.0, 2.0**24))
@hypothesis.settings(deadline=None, max_examples=15)
def test_every_step_uses_the_automatons_scale_and_skipped_ones_change_nothing(
    make_optimizer, opt_level, pattern, start, bounds
):
    reference = ScaleReference(6, *bounds)
    try:
        options = {"growth_interval": 6, "min_loss_scale": bounds[0], "max_loss_scale": bounds[1]}
        model, optimizer = initialized(make_optimizer, opt_level=opt_level, **options)
        load(*start)
        reference.scale, reference.unskipped = start
        for overflows, is_read in pattern:
            before = [param.detach().clone() for param in amp.master_params(optimizer)]
            assert step(model, optimizer, overflows) == reference.scale
            reference.update(overflows)
            assert all(map(torch.equal, before, amp.master_params(optimizer))) == overflows
            if is_read:
                assert numbers() == {"loss_scale": reference.scale, "unskipped": reference.unskipped}
                assert amp.step_was_skipped(optimizer) == overflows
    finally:
        ampcompat.reset()


@each_automaton
def test_a_loaded_count_beyond_the_growth_interval_grows_the_scale_at_once(make_optimizer):
    model, optimizer = initialized(make_optimizer, growth_interval=5)
    load(1024.0, unskipped=10)
    assert [step(model, optimizer) for _ in range(7)] == [1024.0] + [2048.0] * 5 + [4096.0]
    assert numbers() == {"loss_scale": 4096.0, "unskipped": 1}


@pytest.mark.parametrize("init_scale, first", [(4.0, 64.0), (128.0, 128.0), (2.0**20, 1024.0)])
def test_the_initial_scale_is_bounded_on_both_sides(init_scale, first):
    scaler = LossScaler("dynamic", init_scale=init_scale, min_loss_scale=64.0, max_loss_scale=1024.0)
    assert scaler.loss_scale() == first


def test_bounds_do_not_apply_to_a_static_scale():
    assert LossScaler(8.0, min_loss_scale=64.0).loss_scale() == 8.0


@each_automaton
def test_an_overflow_in_a_nested_block_of_another_optimizer_lowers_the_next_scale(make_optimizer):
    model, other_model = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer, other = make_optimizer(model.parameters()), on_host(other_model.parameters())
    amp.initialize([model, other_model], [optimizer, other], opt_level="O1", verbosity=0)
    with amp.scale_loss(model(torch.ones(1, 3)).float().sum() * 2.0**-24, optimizer) as outer:
        loops.backward(other_model(torch.ones(1, 3)).float().sum() * float("inf"), other)
        outer.backward()
    assert step(model, optimizer) == 2.0**15
    assert numbers() == {"loss_scale": 2.0**15, "unskipped": 2}
