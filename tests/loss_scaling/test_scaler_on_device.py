"""With an optimizer that skips by itself the host reads nothing in a step; notices come when somebody asks for them."""

import pytest
from helpers import forked
from helpers.automata import initialized, needs_device, on_device, step
from helpers.dispatched import Watch

from ampcompat import amp

pytestmark = needs_device


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_step_reads_nothing_to_the_host(level):
    model, optimizer = initialized(on_device, opt_level=level)
    for overflowed in (False, True):
        step(model, optimizer, overflowed)
    with Watch() as watch:
        for overflowed in (False, True, False):
            step(model, optimizer, overflowed)
    assert watch.reads == 0


def test_the_notice_comes_when_somebody_asks(capsys):
    model, optimizer = initialized(on_device, verbosity=1)
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
