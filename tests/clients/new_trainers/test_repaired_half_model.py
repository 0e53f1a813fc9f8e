"""A model in bfloat16 that transformers' Trainer trains is repaired by what the audit prints: to float32's loss."""

import os
import pathlib

import pytest
from helpers import client_modules

from ampcompat.abtest.report_data import Report
from ampcompat.cli import main
from ampcompat.launch.forced_levels.forced_level import is_supported

client_modules.imported("transformers", "new-trainers")

pytestmark = pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1")

TESTS = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = TESTS / "clients" / "new_trainers" / "scripts" / "half_model_fit.py"


def test_lost_updates_are_found_the_repaired_run_is_clean_and_its_loss_is_that_of_float32(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), str(TESTS)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [str(SCRIPT), str(tmp_path / "runs" / "{run}"), "auto"]
    assert main(["audit", "--steps", "30", *command]) == 1
    text = capsys.readouterr().out
    assert "without float32 masters, and most updates of" in " ".join(text.split())
    assert "ampcompat run --opt-level O5" in text
    assert main(["audit", "--opt-level", "O5", "--steps", "30", *command]) == 0
    assert "nothing is wrong" in capsys.readouterr().out

    control, file = tmp_path / "float32.py", tmp_path / "ab.json"
    control.write_text(SCRIPT.read_text().replace("dtype=sys.argv[2]", 'dtype="float32"'))
    options = ["--no-control", "--no-diagnose", "--no-memory", "--timing-steps", "0", "--json", str(file)]
    assert main(["ab", "--levels", "O5", "--against", str(control), *options, *command]) == 0
    losses = {name: list(run.losses().values()) for name, run in Report.load(file).runs.items()}
    half, repaired, full = (sum(losses[name][-20:]) / 20 for name in (SCRIPT.name, "O5", "float32.py"))
    assert half > 1.02 * full
    assert repaired == pytest.approx(full, rel=0.003)
