"""The examples: each through the command line once, and at every level with few steps."""

import os
import re
import runpy
import sys

import pytest
from helpers import half_kernels
from helpers.half_kernels import stand_in
from helpers.processes import ROOT, run_in_process

from ampcompat.apex import install

#: A pair of dtypes in which every torch computes, in place of the level's own.
WIDE = ("--dtypes", "float32,float64")
DIGITS, TEXT, GAN, SPIRALS = "digits_cnn.py", "char_transformer.py", "gan.py", "classifier.py"


@pytest.fixture
def train(monkeypatch, capsys):
    """Return a function that runs an example in this process, as ``run`` would, and returns what it prints."""
    install.install()

    def run(name, level, *arguments):
        for variable, value in stand_in(level).items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setattr(sys, "argv", [name, "--opt-level", level] + list(arguments))
        runpy.run_path(example(name), run_name="__main__")
        return capsys.readouterr().out

    yield run
    install.uninstall()


def example(name):
    return os.path.join(ROOT, "examples", name)


def numbers(pattern, output):
    return [float(found) for found in re.findall(pattern + r" *(-?[0-9.]+|nan|inf)", output)]


@pytest.mark.parametrize("level, dtypes", [("O0", ()), ("O1", WIDE), ("O2", WIDE)], ids=["O0", "O1", "O2"])
def test_a_full_training_on_any_torch(level, dtypes, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    run_in_process(monkeypatch, "--opt-level", level, *(dtypes + (example(DIGITS), "--epochs", "4")))
    printed = capsys.readouterr().out
    assert "Selected optimization level " + level in printed
    losses = numbers("loss", printed)
    assert len(losses) == 4 and losses[-1] < 0.1 * losses[0]
    assert numbers("test accuracy:", printed)[0] >= 96.0


def test_digits_loss_falls_within_few_steps(train, level):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    output = train(DIGITS, level, "--steps", "30")
    assert "epoch  1: loss" in output
    assert numbers("stopped after step 30: loss", output)[0] < 0.5


def test_transformer_learns_at_every_level(train, level):
    half_kernels.skip_without_norms(level)
    output = train(TEXT, level, "--steps", "20", "--width", "32", "--context", "16", "--lr", "0.01")
    assert numbers("validation loss:", output)[0] < 4.2  # an untrained one is at log 96 = 4.56


def test_the_three_losses_of_the_gan_stay_in_balance_at_every_level(train, level):
    """Where neither wins each is at log 2 = 0.69."""
    losses = re.search(r"step +25: real (.*), fake (.*), generator (.*)", train(GAN, level, "--steps", "25")).groups()
    assert all(0.3 < float(loss) < 1.5 for loss in losses)


@pytest.mark.parametrize("amp", [(), ("--fp16",)], ids=["plain", "amp"])
def test_the_classifier_learns_and_goes_on_from_its_checkpoint(train, amp, tmp_path):
    path = str(tmp_path / "runs" / "O1.pt")
    first = train(SPIRALS, "O1", "--epochs", "2", "--checkpoint", path, *amp)
    second = train(SPIRALS, "O1", "--epochs", "4", "--checkpoint", path, *amp)
    right = numbers("test accuracy", first + second)
    assert len(right) == 4 and right[-1] > 85.0 and ("loss_scale" in first) == bool(amp)
    assert "resumed after epoch 2" in second and "resumed" not in first


@pytest.mark.parametrize("name", [DIGITS, TEXT])
def test_a_static_loss_scale_from_the_command_line_counts(train, name):
    if name == DIGITS:
        pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    else:
        half_kernels.skip_without_norms("O2")
    output = train(name, "O2", "--loss-scale", "128.0", "--steps", "1", "--batch-size", "2")
    assert re.search(r"loss_scale +: 128\.0", output)


def test_examples_import_nothing_but_apex_torch_scikit_learn_and_the_standard_library():
    for name in (DIGITS, TEXT, GAN, SPIRALS, "imagenet.py"):
        with open(example(name), encoding="utf-8") as file:
            imported = re.findall(r"^\s*(?:import|from) (\w+)", file.read(), re.MULTILINE)
        others = {"shutil", "time", "numpy"} if name == "imagenet.py" else {"math", "sklearn", "pydoc_data"}
        assert set(imported) <= {"argparse", "os", "torch", "apex"} | others
