"""Small fits of trainers, unchanged and under a forced level, and what both must have in common."""

import math
import os
import pathlib

import pytest
import torch

from ampcompat.abtest import Report
from ampcompat.abtest.judging import against_unchanged_script
from ampcompat.abtest.judging.verdict import ACCEPTED, BASELINE, judge
from ampcompat.cli import main
from ampcompat.launch.forced_levels.forced_level import forced

#: The levels that are tried, and the dtype that weights then have.
LEVELS = ("O0", "O1", "O2", "O4", "O5")
WEIGHTS = {"O2": torch.float16, "O5": torch.bfloat16}


def assert_trains_as_unchanged(fit, level):
    """Train without and with a forced level, and compare losses, weights and dtypes.

    Args:
        fit: trains a new model, the same at each call; returns its losses, and the model.
        level: O0 must be equal bit for bit, other levels must be near.
    """
    expected, model = fit()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with forced(level):
        losses, model = fit()
        found = {name: value.clone() for name, value in model.state_dict().items()}
        assert next(model.parameters()).dtype is WEIGHTS.get(level, torch.float32)
    assert len(losses) == len(expected) >= 4 and all(map(math.isfinite, losses))
    assert losses == (expected if level == "O0" else pytest.approx(expected, rel=0.02))
    assert {each.dtype for each in found.values() if each.is_floating_point()} == {torch.float32}
    if level == "O0":
        assert all(torch.equal(found[name], value) for name, value in weights.items())


def tiny_bert(transformers, layers=1):
    """Return a BERT of the module ``transformers`` with random weights, dropout included."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def fit_by_transformers(transformers, folder):
    """Train a small classifier by the Trainer of the module ``transformers``; return what ``fit`` of the above does."""
    model = tiny_bert(transformers)
    rows = [{"input_ids": row, "labels": row[0] % 3} for row in torch.randint(0, 32, (16, 8))]
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=8, num_train_epochs=2, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, logging_steps=1,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    return [each["loss"] for each in trainer.state.log_history if "loss" in each], model


def assert_accepted(script, folder, monkeypatch, *arguments):
    """Compare O0 and O5 with a script of ``new_trainers/scripts`` by ``ab``: accepted, O0 bit for bit.

    Args:
        script: its name.
        folder: a temporary one, for the report.
        arguments: those of the script.
    """
    tests = pathlib.Path(__file__).resolve().parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests.parent), str(tests)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path, file = tests / "clients" / "new_trainers" / "scripts" / script, folder / "report.json"
    options = ["--levels", "O0,O5", "--timing-steps", "0", "--no-memory", "--json", str(file)]
    assert main(["ab", *options, str(path), *map(str, arguments)]) == 0
    report = Report.load(file)
    assert {name: each.kind for name, each in judge(report).items()} == {
        "unchanged": BASELINE,
        "O0": ACCEPTED,
        "O5": ACCEPTED,
    }
    assert against_unchanged_script.is_equal(report), report.advice
    first = report.runs["unchanged"]
    for run in report.runs.values():
        assert run.loaded == first.loaded
        assert any(first.loaded) or (run.inputs == first.inputs and any(first.inputs))  # without a DataLoader
