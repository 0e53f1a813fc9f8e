"""``ampcompat forecast``: its output, its files and its errors."""

import json
import re

import pytest
import trainings  # noqa: F401  skips old torch
from helpers import forked

from ampcompat.diagnostics.forecast import forecast_text
from ampcompat.launch.forced_levels.forced_level import is_supported

SCRIPT = """
import torch
from apex import amp

torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Linear(4, 16), torch.nn.Linear(16, 1)
        self.body = torch.nn.Identity()
        self.body.forward = lambda x: torch.relu(x.pow(2) * 1e6) / 1e6

    def forward(self, x):
        return self.head(self.body(self.embed(x)))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for step in range(100):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = (model(x) - x[:, :1]).pow(2).mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""

KINDS = {"overflow", "underflow", "lost_updates", "epsilon", "reduction", "dtype"}


def level_of(prediction="works", safe_loss_scale=None, keep_fp32=(), findings=()):
    """Return what is found of a level."""
    found = {"prediction": prediction, "keep_fp32": list(keep_fp32), "safe_loss_scale": safe_loss_scale}
    return dict(found, findings=list(findings))


OVERFLOW = {"module": "body", "op": "mul", "kind": "overflow", "margin": 3.2}
FOUND = {
    "levels": {
        "O0": level_of(),
        "O1": level_of(safe_loss_scale=4096.0),
        "O2": level_of("keep_fp32", 4096.0, ["body"], [OVERFLOW]),
        "O3": level_of("fails", 4096.0, [], [{"module": "", "op": "<b>", "kind": "epsilon", "margin": 1.6}]),
        "O4": level_of(),
        "O5": level_of(),
    },
    "details": {
        "steps": 50,
        "losses": [2.5, 0.5],
        "problems": {},
        "half_dtypes": [],
        "uncompiled": [],
        "has_amp": True,
        "levels": {
            level: {
                "dtype": {"O0": None, "O4": "bfloat16", "O5": "bfloat16"}.get(level, "float16"),
                "error": "",
                "zero_eps": None,
                "skips": 4,
                "scale": None if level in ("O1", "O2") else 1.0,
                "margins": [
                    {"module": "body", "op": "mul", "largest": 1e5, "gradient": 2.0, "lost": 0.1, "margin": 0.6}
                ],
            }
            for level in ("O0", "O1", "O2", "O3", "O4", "O5")
        },
    },
}


def test_a_script_is_forecast_and_the_files_are_written(tmp_path):
    path, written = tmp_path / "training.py", tmp_path / "forecast.json"
    path.write_text(SCRIPT)
    done = forked.run(forked.forecast, "--steps", 8, "--json", written, path)
    assert done.returncode == 0, done.stderr
    assert "8 steps" in done.stderr and "O2  works with keep_fp32=" in done.stdout
    levels = json.loads(written.read_text())["levels"]
    assert list(levels) == ["O0", "O1", "O2", "O3", "O4", "O5"]
    for found in levels.values():
        assert set(found) == {"prediction", "keep_fp32", "safe_loss_scale", "findings"}
        assert found["prediction"] in ("works", "keep_fp32", "fails")
        for each in found["findings"]:
            assert set(each) == {"module", "op", "kind", "margin"} and each["kind"] in KINDS
    assert levels["O2"]["keep_fp32"] == ["body"] and levels["O2"]["findings"][0]["module"] == "body"


def test_a_plain_script_is_forecast_too(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(
        re.sub(r"model, optimizer = amp.*\n", "", SCRIPT)
        .replace("from apex import amp", "")
        .replace("    with amp.scale_loss(loss, optimizer) as scaled_loss:\n        scaled_loss", "    loss")
    )
    done = forked.run(forked.forecast, "--steps", 5, path)
    assert done.returncode == 0, done.stderr
    if is_supported():
        assert "ampcompat run --opt-level O1" in done.stdout.replace("\n", " ")
    else:
        assert 'Take O1: model, optimizer = amp.initialize(model, optimizer, opt_level="O1")' in done.stdout


@pytest.mark.skipif(not is_supported(), reason="scripts without Apex need torch 2.1")
def test_half_weights_are_named_with_the_command_that_audits_them(tmp_path):
    path = tmp_path / "half.py"
    lines = [
        "import torch",
        "model = torch.nn.Linear(4, 4).bfloat16()",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
        "for step in range(5):",
        "    model(torch.randn(2, 4, dtype=torch.bfloat16)).float().pow(2).mean().backward()",
        "    optimizer.step()",
    ]
    path.write_text("\n".join(lines))
    done = forked.run(forked.forecast, "--steps", 5, path)
    assert done.returncode == 0, done.stderr
    assert "Its weights are bfloat16: this is of float32 copies." in done.stdout
    assert f"What its own weights lose: ampcompat audit {path}" in done.stdout


def test_what_the_script_compiles_is_forecast_uncompiled_and_named(tmp_path):
    path = tmp_path / "compiled.py"
    lines = [
        "import torch",
        "model = torch.compile(torch.nn.Linear(4, 4))",
        "part = torch.nn.Linear(4, 4)",
        "part.compile()",
        "optimizer = torch.optim.SGD([*model.parameters(), *part.parameters()], lr=0.01)",
        "@torch.compile(fullgraph=True)",
        "def loss_of(x):",
        "    return part(model(x)).pow(2).mean()",
        "for step in range(5):",
        "    optimizer.zero_grad()",
        "    loss_of(torch.randn(2, 4)).backward()",
        "    optimizer.step()",
    ]
    path.write_text("\n".join(lines))
    done = forked.run(forked.forecast, "--steps", 5, path)
    assert done.returncode == 0, done.stderr
    assert "Ran uncompiled, to be observed: Linear, loss_of." in done.stdout
    assert "O1  works" in done.stdout


@pytest.mark.parametrize(
    "source, told",
    (("print(1)", "No training step was recorded"), ("raise ValueError('the cause')", "ValueError: the cause")),
)
def test_a_script_that_does_not_train_is_one_clear_error(source, told, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(source)
    done = forked.run(forked.forecast, path)
    assert done.returncode == 1 and told in done.stderr and done.stdout == ""


def test_the_text_has_80_columns_a_verdict_per_level_and_the_command():
    told = forecast_text.to_text(FOUND, ["train.py", "--lr", "0.1"], details=True)
    assert all(len(line) <= 80 or "ampcompat" in line for line in told.splitlines())
    assert 'O2  works with keep_fp32=["body"]' in told and "O3  will not work" in told
    assert "body: mul is 9.2 × too large (the largest float16 is 65,504)" in told
    assert "Take O1: ampcompat run --opt-level O1 train.py --lr 0.1" in told


def test_a_module_is_called_by_its_name():
    assert forecast_text.to_text(FOUND, ["-m", "package.train"]).startswith("Forecast of package.train from")
    assert "run --opt-level O1 -m package.train" in forecast_text.to_text(FOUND, ["-m", "package.train"])


def test_a_level_with_layers_in_float32_is_recommended_where_none_works_as_it_is():
    levels = dict.fromkeys(FOUND["levels"], FOUND["levels"]["O3"])
    assert forecast_text.advice({**FOUND, "levels": levels}, ["train.py"]) == ["No level will work: train in float32."]
    levels["O2"] = FOUND["levels"]["O2"]
    take, check, script = forecast_text.advice({**FOUND, "levels": levels}, ["train.py"])
    assert take == "Take O2: ampcompat run --opt-level O2 --keep-fp32 body train.py"
    assert check.endswith("ab --baseline O0 --variant 'kept: --opt-level O2 --keep-fp32 body' train.py")
    assert script.endswith('opt_level="O2", keep_fp32=["body"])')


def test_a_level_that_will_not_work_has_no_advice_on_its_loss_scale():
    fails = dict(FOUND["levels"]["O2"], prediction="fails", keep_fp32=[])
    told = forecast_text.to_text({**FOUND, "levels": dict(FOUND["levels"], O2=fails)}, ["train.py"])
    assert "O2  will not work" in told and "init_scale" not in told
