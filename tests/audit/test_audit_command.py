"""``python -m ampcompat audit``: its output, its file, its exit code and its errors."""

import json

import pytest
from helpers import forked

from ampcompat.abtest.report_data import Report
from ampcompat.cli import main
from ampcompat.diagnostics.audit import audit_text
from ampcompat.diagnostics.audit.audit_page import to_html
from ampcompat.diagnostics.audit.tensor_rows import TensorRow
from ampcompat.support.torch_compat import features

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


@pytest.mark.parametrize(
    "options, code", [(("--fail-on", "note"), 1), (("--fail-on", "never"), 0)], ids=["note", "never"]
)
def test_lost_updates_are_printed_with_the_command_that_repairs_them(options, code, script, tmp_path):
    files = "--json", tmp_path / "audit.json", "--html", tmp_path / "audit.html"
    done = forked.run(forked.audit, *options, *files, script, "bfloat16")
    assert done.returncode == code, done.stderr
    assert (
        "10 optimizer steps (5 of them repeated with float32 weights): 1 thing is wrong" in done.stdout
        and "1.weight" in done.stdout
    )
    assert f"ampcompat run --opt-level O5 {script} bfloat16" in done.stdout and "the end" not in done.stdout
    page = (tmp_path / "audit.html").read_text()
    assert "<h2>Wrong: lost updates</h2>" in page and "<td>1.weight</td>" in page
    assert f"<dd><code>ampcompat audit --opt-level O5 {script} bfloat16</code></dd>" in page
    assert page.count("http") == page.count("http-")
    report = json.loads((tmp_path / "audit.json").read_text())
    assert report["steps"] == 10 and report["dtypes"]["weights"] == {"bfloat16": 88}
    assert {"name": "1.weight", "numel": 8, "unmoved": 8, "lost": 1.0} in report["findings"][0]["layers"]
    state = dict.fromkeys(("exp_avg", "exp_avg_sq"), "bfloat16")
    row = TensorRow("weight", "1.weight", "bfloat16", 8, "bfloat16", state, unmoved=8, lost=1.0)
    assert row._asdict() in report["tensors"] and "<td>exp_avg" not in page and "<h2>Tensors</h2>" in page


def test_float32_weights_are_right_and_steps_end_the_script(script):
    done = forked.run(forked.audit, "--steps", 3, script, "float32")
    assert done.returncode == 0, done.stderr
    assert "3 optimizer steps: nothing is wrong" in done.stdout and "the end" not in done.stdout


def test_a_script_that_fails_is_one_clear_error(script):
    done = forked.run(forked.audit, script, "float33")
    assert done.returncode == 1 and "has no attribute 'float33'" in done.stderr and done.stdout == ""


REPAIR = """
import sys, torch

torch.manual_seed(0)
features = torch.randn(512, 32)
targets = torch.tanh(features @ torch.randn(32, 8) / 6)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
model = model.to(torch.bfloat16)
optimizer = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=float(sys.argv[2]), weight_decay=0)
for step in range(200):
    batch = torch.randint(0, 512, (64,))
    optimizer.zero_grad()
    outputs = model(features[batch].to(torch.bfloat16))
    loss = torch.nn.functional.mse_loss(outputs.float(), targets[batch])
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "arguments, is_written", [(("AdamW", "1e-4"), True), (("RMSprop", "3e-5"), False)], ids=["AdamW", "RMSprop"]
)
def test_a_script_that_loses_updates_is_repaired_by_the_commands_that_the_audit_prints(arguments, is_written, tmp_path):
    script, new = tmp_path / "repair.py", tmp_path / "repair_O5.py"
    script.write_text(REPAIR)
    done = forked.run(forked.audit, "--steps", 30, script, *arguments)
    assert done.returncode == 1 and "params are lost" in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert f"ampcompat ab --against {new} {script} {' '.join(arguments)}" in done.stdout
    done = forked.run(forked.audit, "--steps", 30, "--opt-level", "O5", script, *arguments)
    assert done.returncode == 0 and "30 optimizer steps: nothing is wrong" in done.stdout, done.stdout + done.stderr
    assert "weights          bfloat16 (1,384), masters float32" in done.stdout
    assert "activations      bfloat16 (Linear, LayerNorm, Tanh)" in done.stdout
    if is_written:
        pytest.importorskip("libcst", reason="migrate needs it")
        assert main(["migrate", "--to-level", "O5", str(script), "-o", str(new)]) == 0
    rows = ("--against", new) if is_written else ("--levels", "O5")
    options = *rows, "--no-control", "--no-diagnose", "--steps", 200, "--json", tmp_path / "ab.json"
    done = forked.run(forked.ab, *options, script, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    plain, repaired = Report.from_json((tmp_path / "ab.json").read_text()).runs.values()
    last = [sum(list(run.losses().values())[-20:]) / 20 for run in (plain, repaired)]
    assert last[1] < 0.95 * last[0]


NO_DTYPES = dict.fromkeys(("weights", "masters", "buffers", "sums between ranks", "optimizer state"), {})
NO_DTYPES.update(dict.fromkeys(("activations", "averages", "gradients", "autocast"), []))


def report_of(layers=(), text="…", tensors=()):
    """Return a report with one finding, of these layers."""
    finding = {"kind": "lost_updates", "is_wrong": True, "text": text, "remedy": "…", "level": "O5", "layers": layers}
    return {"steps": 1, "repeated": 1, "dtypes": NO_DTYPES, "findings": [finding], "tensors": tensors}


def test_the_page_escapes_what_a_script_names():
    layers = [{"name": "<b>", "numel": 4, "unmoved": 4, "lost": None}]
    row = TensorRow("weight", "<s>", "bfloat16", 4, "bfloat16", {"exp_avg": "bfloat16"}, 4, 1.0)._asdict()
    page = to_html(report_of(layers, "<i>", [row]), ["<u>.py"])
    assert not any(name in page for name in ("<b>", "<i>", "<u>", "<s>")) and "&lt;u&gt;.py" in page
    assert "<dd><code>ampcompat run --opt-level O5 " in page  # where it wraps on a narrow screen


def test_a_script_whose_trainer_has_the_backward_pass_is_repaired_by_the_command_line_alone(tmp_path):
    script, texts = tmp_path / "train.py", []
    for line in ("loss.backward()", "transformers.Trainer(model).train()"):
        script.write_text("import transformers\n" + line)
        texts.append(audit_text.to_text(report_of(), [str(script)]))
    assert "ampcompat migrate --to-level O5" in texts[0] and "migrate" not in texts[1]
    assert all("ampcompat run --opt-level O5" in text for text in texts)


def test_with_a_launcher_the_commands_have_it():
    text = audit_text.to_text(report_of(), ["train.py"], launcher=["torchrun", "--nproc_per_node", "2"])
    assert "unchanged:  torchrun --nproc_per_node 2 -m ampcompat run --opt-level O5 train.py" in text
    assert "ampcompat ab --launcher 'torchrun --nproc_per_node 2' --levels O0,O5 train.py" in text
