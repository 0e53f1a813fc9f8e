"""``ab --first-difference``: two processes, the report, and wrong command lines."""

import json

import pairs  # noqa: F401  skips old torch
import pytest
from helpers import forked
from helpers.half_kernels import needs_float16

from ampcompat.abtest import Report
from ampcompat.abtest.report.text import to_text
from ampcompat.cli import main

SCRIPT = """
import os
import sys
import torch
from apex import amp

torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        if os.environ.get("AMPCOMPAT_OPT_LEVEL") == "O1":
            with amp.disable_casts():
                return self.last(torch.softmax(x.half(), -1).float())
        return self.last(torch.softmax(x, -1))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
for step in range(int(sys.argv[1])):
    loss = model(torch.randn(8, 8)).pow(2).mean()
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""


def in_one_line(text):
    """Return a text without its line breaks, which the length of the folder's name decides."""
    return " ".join(text.split())


def compare(tmp_path, level, steps):
    path, written = tmp_path / "training.py", tmp_path / "report.json"
    path.write_text(SCRIPT)
    done = forked.run(forked.ab, "--first-difference", level, "--json", written, path, steps)
    assert done.returncode == 0, done.stderr
    return path, in_one_line(done.stdout), Report.load(str(written)), json.loads(written.read_text())


@needs_float16
def test_the_first_wrong_op_is_told_with_its_line_and_is_in_the_report(tmp_path):
    path, told, report, tree = compare(tmp_path, "O1", 50)
    first = tree["first_difference"]
    number = 1 + SCRIPT.splitlines().index(first["source"].rjust(len(first["source"]) + 16))
    assert {name: first[name] for name in ("module", "op", "direction")} == {
        "module": "",
        "op": "softmax",
        "direction": "forward",
    }
    assert (
        first["introduced"] > 64 and first["line"] == f"{path}:{number}" and "torch.softmax(x.half()" in first["source"]
    )
    assert report.step_comparison.step == 1 and report.step_comparison.unchecked == 0 and report.runs == {}
    without_paths = in_one_line(to_text(report, 100)).partition("operations of step 2")[2]
    assert "introduced inherited" in without_paths and without_paths in told
    assert "runs in float16 although the op table says float32" in told
    assert "operations of step 2 were repeated on the inputs of O0" in told


@needs_float16
def test_a_script_of_one_step_is_compared_in_it_and_null_is_nothing(tmp_path):
    _, told, report, tree = compare(tmp_path, "O2", 1)
    assert tree["first_difference"] is None and report.step_comparison.step == 0
    assert "No operation of step 1 differs between O0 and O2 by more than its dtype explains." in told


@needs_float16
@pytest.mark.parametrize("baseline", ([], ["--baseline", "O0"]))
def test_a_variant_is_compared_with_float32_only(baseline, tmp_path):
    path = tmp_path / "training.py"
    path.write_text(SCRIPT)
    done = forked.run(forked.ab, "--first-difference", "new", "--variant", "new: --opt-level O5", *baseline, path, 5)
    assert done.returncode == (0 if baseline else 1)
    if baseline:
        assert "No operation of step 2 differs between O0 and new" in in_one_line(done.stdout)
    else:
        assert "the baseline computes at O2: pass --baseline O0." in done.stderr


def test_a_script_that_fails_is_one_clear_error(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("raise ValueError('the cause')")
    done = forked.run(forked.ab, "--first-difference", "O2", path)
    assert done.returncode == 1 and done.stdout == ""
    assert "unchanged has no step 2 to compare: ValueError: the cause" in done.stderr


@pytest.mark.parametrize(
    "arguments, told",
    (
        (["--first-difference", "O7"], "'O7' is not one of O0"),
        (["--first-difference", "O0"], "O0 is the baseline"),
        (["--first-difference", "O1", "--levels", "O2"], "cannot be combined with --levels: it compares one step"),
        (["--first-difference", "new", "--variant", "other: --opt-level O1"], "nor a variant: other"),
    ),
)
def test_a_wrong_command_line_is_one_line(arguments, told, tmp_path, capsys):
    path = tmp_path / "script.py"
    path.write_text("")
    with pytest.raises(SystemExit) as left:
        main(["ab"] + arguments + [str(path)])
    assert left.value.code == 2 and told in capsys.readouterr().err
