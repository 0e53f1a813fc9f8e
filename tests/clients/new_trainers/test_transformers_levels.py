"""Levels forced on the Trainer of transformers 5, and an audit of it."""

import pytest
import torch
from helpers import client_modules, forced_trainings

import ampcompat

transformers = client_modules.imported("transformers", "new-trainers")


@pytest.fixture(autouse=True, scope="module")
def first_model(tmp_path_factory):
    """Make one model first: transformers adds a method to ``torch.nn.Module`` then."""
    forced_trainings.fit_by_transformers(transformers, tmp_path_factory.mktemp("first"))


@pytest.mark.parametrize("level", forced_trainings.LEVELS)
def test_the_trainer_trains_at_a_forced_level_as_unchanged(level, tmp_path, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_VERBOSITY", "0")
    forced_trainings.assert_trains_as_unchanged(
        lambda: forced_trainings.fit_by_transformers(transformers, tmp_path), level
    )


def fit_saved(folder, dtype):
    """Save a small GPT-2 in bfloat16, load it with this dtype, and train it for 12 steps."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).to(torch.bfloat16).save_pretrained(folder / "saved")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "saved", dtype=dtype)
    tokens = torch.randint(0, 64, (64, 16))
    arguments = transformers.TrainingArguments(
        str(folder / "out"),
        max_steps=12,
        learning_rate=1e-5,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in tokens]
    transformers.Trainer(model, arguments, train_dataset=data).train()


@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("dtype, wrong", [("auto", ["lost_updates"]), ("float32", [])])
def test_a_model_that_is_loaded_in_the_dtype_of_its_file_loses_updates(dtype, wrong, tmp_path):
    with ampcompat.audit([]) as audit:
        fit_saved(tmp_path, dtype)
    assert [each["kind"] for each in audit.wrong] == wrong
    if wrong:
        layers = {each["name"]: each for each in audit.wrong[0]["layers"]}
        assert layers["transformer.ln_f.weight"]["unmoved"] == 32
