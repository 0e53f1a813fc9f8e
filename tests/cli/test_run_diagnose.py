"""``run --diagnose``: prints for an unchanged script why steps were skipped, and how many passes had which cause."""

import pytest
from helpers import forked, half_kernels
from helpers.processes import environment, run_in_process

import ampcompat

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


@pytest.fixture(params=["dynamic", 1.0])
def path(request, tmp_path):
    """Return the path of the script with a loss scale."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(scale=request.param))
    return path


def check(printed, happened):
    said = printed.partition("the script ends")
    (line,) = [line for line in "".join(said).splitlines() if line.startswith("ampcompat: step 2 (loss scaler 0)")]
    assert happened in line and "The loss was nan although" in line
    assert "ampcompat: of 4 backward passes 1 had inf or nan: 1 as in step 2 (nan in the loss)." in said[2]


@pytest.mark.parametrize("path", ["dynamic"], indirect=True)
def test_a_script_is_diagnosed_without_a_change_until_its_process_ends(path):
    done = forked.run(forked.command, "--diagnose", path, env=environment(**half_kernels.stand_in()))
    assert done.returncode == 0, done.stderr
    check(done.stdout, "was skipped.")


@pytest.mark.parametrize("path", [1.0], indirect=True)
def test_with_a_static_scale_it_says_that_the_step_was_done(path, capsys, monkeypatch):
    run_in_process(monkeypatch, "--diagnose", path)
    ampcompat.reset()
    check(capsys.readouterr().out, "was not skipped despite inf or nan")


def test_without_the_option_nothing_is_printed(path, capsys, monkeypatch):
    run_in_process(monkeypatch, path)
    ampcompat.reset()
    printed = capsys.readouterr().out
    assert "the script ends" in printed and "ampcompat:" not in printed
