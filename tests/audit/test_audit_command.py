"""``python -m ampcompat audit``: its output, its file, its exit code and its errors."""

import json

import pytest
from helpers import forked

from ampcompat.cli import main
from ampcompat.support.torch_compat import features
from ampcompat.tools.audit import audit_text

pytestmark = pytest.mark.skipif(not features.is_version_within(oldest="2.1"), reason="an audit needs torch 2.1")

SCRIPT = """
import sys, torch

def main():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).to(getattr(torch, sys.argv[1]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for step in range(10):
        optimizer.zero_grad()
        model(torch.randn(4, 8).to(model[0].weight)).float().pow(2).mean().backward()
        optimizer.step()
    print("the end")

main()
"""


@pytest.fixture
def script(tmp_path):
    """The path of a script that trains weights of the dtype that it is passed."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("options, code", [((), 1), (("--fail-on", "never"), 0)], ids=["fails", "never"])
def test_lost_updates_are_printed_with_the_command_that_repairs_them(options, code, script, tmp_path):
    done = forked.run(forked.audit, *options, "--json", tmp_path / "audit.json", script, "bfloat16")
    assert done.returncode == code, done.stderr
    assert (
        "10 optimizer steps (5 of them repeated with float32 weights): 1 thing is wrong" in done.stdout
        and "1.weight" in done.stdout
    )
    assert f"ampcompat run --opt-level O5 {script} bfloat16" in done.stdout and "the end" not in done.stdout
    report = json.loads((tmp_path / "audit.json").read_text())
    assert report["steps"] == 10 and report["dtypes"]["weights"] == {"bfloat16": 88}
    assert {"name": "1.weight", "numel": 8, "unmoved": 8, "lost": 1.0} in report["findings"][0]["layers"]


def test_float32_weights_are_right_and_steps_end_the_script(script):
    done = forked.run(forked.audit, "--steps", 3, script, "float32")
    assert done.returncode == 0, done.stderr
    assert "3 optimizer steps: nothing is wrong" in done.stdout and "the end" not in done.stdout


def test_a_script_that_fails_is_one_clear_error(script):
    done = forked.run(forked.audit, script, "float33")
    assert done.returncode == 1 and "has no attribute 'float33'" in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    "arguments, text",
    [
        ([], "no script given"),
        (["--steps", "0", "x.py"], "whole number from 1 up"),
        (["nothing.py"], "script not found"),
        (["-"], "from stdin"),
        (["--fail-on", "sometimes", "x.py"], "invalid choice"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments, text, capsys):
    with pytest.raises(SystemExit) as left:
        main(["audit"] + arguments)
    assert left.value.code == 2 and text in capsys.readouterr().err


def test_with_a_launcher_the_commands_have_it():
    finding = {"kind": "lost_updates", "is_wrong": True, "text": "…", "remedy": "…", "level": "O5", "layers": []}
    dtypes = {"weights": {}, "buffers": {}, "gradients": [], "autocast": [], "optimizer state": {}}
    report = {"steps": 1, "repeated": 1, "dtypes": dtypes, "findings": [finding]}
    text = audit_text.to_text(report, ["train.py"], launcher=["torchrun", "--nproc_per_node", "2"])
    assert "Repair:  torchrun --nproc_per_node 2 -m ampcompat run --opt-level O5 train.py" in text
    assert "ampcompat ab --launcher 'torchrun --nproc_per_node 2' --levels O0,O5 train.py" in text
