"""``benchmarks/on_gpu.py``: what it would run exists, its outputs are kept, and without a GPU it says so."""

import pathlib
import re

import pytest
import torch
from helpers import benchmark_files

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def on_gpu():
    """The benchmark as a module."""
    return benchmark_files.load("on_gpu")


def test_every_step_calls_a_script_that_takes_its_options(on_gpu):
    for step in on_gpu.STEPS:
        script = re.match(r"benchmarks/\w+\.py", step.command)
        if script:
            source = (ROOT / script.group()).read_text(encoding="utf-8")
            options = re.findall(r"--[\w-]+", step.command)
            assert "--device" in options
            taken = [option[2:].replace("-", "_") + "=" for option in options]
            assert [option for option in taken if option not in source] == [], step.name


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_one_sentence(on_gpu, capsys, tmp_path):
    assert on_gpu.main(["--folder", str(tmp_path / "results")]) == 2
    assert capsys.readouterr().err == "on_gpu.py: error: torch finds no CUDA device.\n"
    assert not (tmp_path / "results").exists()


def test_outputs_are_kept_with_their_targets_and_a_failed_step_fails_the_run(on_gpu, capsys, tmp_path, monkeypatch):
    steps = [on_gpu.Step("good one", "prints 42", "-c print(42)"), on_gpu.Step("bad", "none", "-c raise(ValueError)")]
    monkeypatch.setattr(on_gpu, "STEPS", steps)
    monkeypatch.setattr(on_gpu, "heading", lambda: "a GPU, torch X, today")
    assert on_gpu.main(["--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^good one +ran .*targets: prints 42$", said, re.MULTILINE)
    assert re.search(r"^bad +FAILED", said, re.MULTILINE)
    assert (tmp_path / "good-one.txt").read_text(encoding="utf-8").endswith("targets: prints 42\n\n42\n")
    assert (tmp_path / "device.txt").read_text(encoding="utf-8") == "a GPU, torch X, today\n"
