"""``run --diagnose``: prints for an unchanged script why steps were skipped, and a histogram of its gradients."""

import half_kernels
import pytest
from processes import RUN, environment, python

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


@pytest.mark.parametrize("scale, happened", [("dynamic", "was skipped."), (1.0, "went through with inf or nan")])
def test_a_script_is_diagnosed_without_a_change(tmp_path, scale, happened):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(scale=scale))
    done = python(*(RUN + ("--diagnose", path)), env=environment(**half_kernels.stand_in()))
    assert done.returncode == 0, done.stderr
    said = done.stdout.partition("the script ends")
    (line,) = [line for line in "".join(said).splitlines() if line.startswith("ampcompat: step 2 (loss scaler 0)")]
    assert happened in line and "The loss was nan although" in line
    assert "ampcompat: of 4 backward passes 1 is explained above. Unscaled gradients by magnitude" in said[2]
    assert "loss" in said[2].splitlines()[-1]


def test_without_the_option_nothing_is_printed(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(scale="dynamic"))
    done = python(*(RUN + (path,)), env=environment(**half_kernels.stand_in()))
    assert "ampcompat:" not in done.stdout
