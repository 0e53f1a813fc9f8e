"""Levels forced on trainers that do not ask for amp, as ``run --opt-level`` does."""

import math

import pytest
import torch
from helpers import client_modules

from ampcompat.tools.forced_levels.forced_level import forced

transformers = client_modules.imported_with_apex("transformers", "trainers")

WEIGHTS = {"O2": torch.float16, "O5": torch.bfloat16}


@pytest.fixture(autouse=True, scope="module")
def first_model(tmp_path_factory):
    """Make one model first: transformers adds a method to ``torch.nn.Module`` then."""
    fit(tmp_path_factory.mktemp("first"))


def fit(folder):
    """Train a small classifier by the Trainer; return its losses, the float32 weights, and the dtype that it has."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
    )
    model = transformers.BertForSequenceClassification(config)
    rows = [{"input_ids": row, "labels": row[0] % 3} for row in torch.randint(0, 32, (16, 8))]
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=8, num_train_epochs=2, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, logging_steps=1,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    return losses, {name: value.clone() for name, value in model.state_dict().items()}, model.dtype


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O4", "O5"])
def test_the_trainer_trains_at_a_forced_level_as_unchanged(level, tmp_path, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_VERBOSITY", "0")
    expected, weights, _ = fit(tmp_path)
    with forced(level):
        losses, found, dtype = fit(tmp_path)
    assert dtype is WEIGHTS.get(level, torch.float32)
    assert len(losses) == 4 and all(map(math.isfinite, losses))
    assert losses == (expected if level == "O0" else pytest.approx(expected, rel=0.01))
    assert {each.dtype for each in found.values() if each.is_floating_point()} == {torch.float32}
    if level == "O0":
        assert all(torch.equal(found[name], value) for name, value in weights.items())
