"""With an optimizer that skips by itself the scale stays on the device, and its numbers are the same."""

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from helpers import forked, fused_optimizers
from helpers.dispatched import Watch
from helpers.networks import ScaleReference

import ampcompat
from ampcompat import amp

pytestmark = pytest.mark.skipif(
    fused_optimizers.why_not("Adam") is not None,
    reason="this torch has no fused Adam on the CPU",
)


def make(level, **options):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    return amp.initialize(model, optimizer, opt_level=level, **options)


def step(model, optimizer, overflowed):
    optimizer.zero_grad()
    # Small enough not to overflow by itself at any scale that this test reaches.
    loss = model(torch.full((1, 3), 2.0**-12)).float().sum() * 2.0**-12
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
        if overflowed:
            next(model.parameters()).grad[0, 0] = float("inf")
    optimizer.step()


@pytest.mark.parametrize("level", ["O1", "O2"])
@hypothesis.given(pattern=st.lists(st.booleans(), min_size=1, max_size=12))
@hypothesis.settings(deadline=None, max_examples=15)
def test_the_numbers_are_the_automatons_and_skipped_steps_change_nothing(level, pattern):
    try:
        model, optimizer = make(level, growth_interval=3, verbosity=0)
        reference = ScaleReference(3)
        for overflowed in pattern:
            before = [param.detach().clone() for param in amp.master_params(optimizer)]
            step(model, optimizer, overflowed)
            reference.update(overflowed)
            after = [param.detach() for param in amp.master_params(optimizer)]
            assert all(torch.equal(old, new) for old, new in zip(before, after)) == overflowed
        scaler = ampcompat.current().scalers[0]
        assert scaler.loss_scale() == reference.scale
        assert amp.step_was_skipped(optimizer) == pattern[-1]
    finally:
        ampcompat.reset()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_step_reads_nothing_to_the_host(level):
    model, optimizer = make(level, verbosity=0)
    for overflowed in (False, True):
        step(model, optimizer, overflowed)
    with Watch() as watch:
        for overflowed in (False, True, False):
            step(model, optimizer, overflowed)
    assert watch.reads == 0


def test_the_notice_comes_when_somebody_asks(capsys):
    model, optimizer = make("O1")
    for overflowed in (True, True, False):
        step(model, optimizer, overflowed)
    assert "Gradient overflow" not in capsys.readouterr().out
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 2.0**14, "unskipped": 1}
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0",
    ]


@pytest.mark.parametrize("ends", ["", "ampcompat.reset()\n", "raise SystemExit(3)\n"], ids=["end", "reset", "exit"])
def test_at_the_latest_it_comes_when_the_run_ends(tmp_path, ends):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, ampcompat\nfrom ampcompat import amp\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.Adam(model.parameters(), fused=True)\n"
        "amp.initialize(model, optimizer, opt_level='O1', init_scale=64.0)\n"
        "with amp.scale_loss(model(torch.ones(1, 2)).sum() * float('inf'), optimizer) as loss:\n"
        "    loss.backward()\n"
        "optimizer.step()\n"
        "print('stepped')\n" + ends
    )
    done = forked.run(forked.script, script)
    assert done.returncode == (3 if "3" in ends else 0), done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "stepped",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32.0",
    ]


@pytest.mark.parametrize("overflowed, bound", [(False, 2.0**17), (True, 2.0**15)], ids=["growing", "backing off"])
def test_the_scale_on_the_device_stays_within_its_bounds_before_the_host_reads_it(overflowed, bound):
    options = {"growth_interval": 1, "min_loss_scale": 2.0**15, "max_loss_scale": 2.0**17, "verbosity": 0}
    model, optimizer = make("O1", **options)
    factors = []
    for _ in range(4):
        loss = model(torch.full((1, 3), 2.0**-12)).float().sum() * 2.0**-12
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            factors.append(scaled_loss.detach() / loss.detach())
            (scaled_loss * (float("inf") if overflowed else 1.0)).backward()
        optimizer.step()
    assert [factor.item() for factor in factors] == [2.0**16, bound, bound, bound]
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == bound
