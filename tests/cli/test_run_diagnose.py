"""``run --diagnose``: prints for an unchanged script why steps were skipped, and how many passes had which cause."""

import pytest
from helpers import forked, half_kernels
from helpers.processes import environment

SCRIPT = """
import torch
from apex import amp

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale={scale!r})
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).float().pow(2).mean() * (float("nan") if step == 2 else 1e-3)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
print("the script ends")
"""


@pytest.mark.parametrize("scale, happened", [("dynamic", "was skipped."), (1.0, "was not skipped despite inf or nan")])
def test_a_script_is_diagnosed_without_a_change_until_its_process_ends(tmp_path, scale, happened):
    printed = run(tmp_path, scale, "--diagnose").partition("the script ends")
    (line,) = [line for line in "".join(printed).splitlines() if line.startswith("ampcompat: step 2 (loss scaler 0)")]
    assert happened in line and "The loss was nan although" in line
    assert "ampcompat: of 4 backward passes 1 had inf or nan: 1 as in step 2 (nan in the loss)." in printed[2]


def test_without_the_option_nothing_is_printed(tmp_path):
    printed = run(tmp_path, "dynamic")
    assert "the script ends" in printed and "ampcompat:" not in printed


def run(folder, scale, *options):
    """Return what the script prints with a loss scale and options."""
    (folder / "script.py").write_text(SCRIPT.format(scale=scale))
    done = forked.run(forked.command, *options, folder / "script.py", env=environment(**half_kernels.stand_in()))
    assert done.returncode == 0, done.stderr
    return done.stdout
