"""Hugging Face transformers 4.57, the last with an Apex backend: its Trainer, and resuming from its checkpoint.

4.57 does not tell accelerate about the Apex backend, so accelerate runs every forward pass under torch's autocast too
(4.56 did not). The reference loop does the same here. Its checkpoints do not contain the state of amp, which makes no
difference in a run that skips no step.
"""

import contextlib

import client_training
import pytest
import torch
from helpers import client_modules
from helpers.forced_trainings import tiny_bert
from helpers.networks import differing, weights_of

import ampcompat
from ampcompat.cuda_redirect import redirect_device

transformers = client_modules.imported_with_apex("transformers", "trainers")
client_modules.imported_with_apex("transformers.trainer", "trainers")
states = client_modules.imported_with_apex("accelerate.state", "trainers")

CLIP = 0.5


class Wanted(torch.nn.Module):
    """The small network as a Trainer wants it."""

    def __init__(self):
        super().__init__()
        self.net = client_training.Net()

    def forward(self, x, labels):
        """Return the loss and the logits."""
        output = self.net(x)
        return {"loss": client_training.loss_of(output, labels), "logits": output}


@pytest.fixture(autouse=True, scope="module")
def first_model():
    """transformers adds a method to torch's Module when it makes its first model."""
    tiny_bert(transformers, 2)


@pytest.fixture(autouse=True)
def trainers_begin_anew(monkeypatch):
    """accelerate keeps the device of the first trainer in a process, and a Trainer writes to the environment."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    states.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    states.AcceleratorState._reset_state(reset_partial_state=True)


def rows(batches, name):
    """Return single examples of batches, under the names of the model's arguments."""
    return [{name: row, "labels": label} for x, y in batches for row, label in zip(x, y)]


class InOrder(transformers.Trainer):
    """Draws the examples in order, as the bare loop does."""

    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def run(level, folder, model, examples, kind=transformers.Trainer, resume=None, **options):
    """Train; return (weights, the losses logged) and close the session."""
    optimizers = options.pop("optimizers", (None, None))
    with redirect_device("cpu"):
        arguments = transformers.TrainingArguments(
            str(folder),
            fp16=True,
            half_precision_backend="apex",
            fp16_opt_level=level,
            per_device_train_batch_size=4,
            num_train_epochs=client_training.EPOCHS,
            save_strategy="epoch",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            **options,
        )
        trainer = kind(model, arguments, train_dataset=examples, optimizers=optimizers)
        trainer.train(resume_from_checkpoint=resume)
        ended = weights_of(model), [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        ampcompat.reset()
    return ended


def run_small(level, folder, resume=None):
    """Train the small network as the bare loop does: in order, without a schedule; return (weights, dtypes noted)."""
    model = Wanted()
    optimizer = client_training.optimizer_of(model)
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    examples = rows(client_training.batches(), "x")
    weights, _ = run(
        level, folder, model, examples, InOrder, resume, max_grad_norm=CLIP, optimizers=(optimizer, steady)
    )
    return {name.partition(".")[2]: tensor for name, tensor in weights.items()}, model.net.seen


def casts_of_accelerate():
    """Return what accelerate runs a forward pass under."""
    if transformers.__version__ < "4.57":
        return contextlib.nullcontext()
    return torch.autocast("cpu", torch.float16)


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_transformers_trains_as_the_bare_loop_does(level, tmp_path):
    expected, dtypes = client_training.expected(level, clip=CLIP, loss_inside=True, around=casts_of_accelerate)
    weights, seen = run_small(level, tmp_path)
    assert differing(weights, expected) == [] and seen == dtypes


@pytest.mark.parametrize("level", client_training.LEVELS)
def test_transformers_resumes_from_its_own_checkpoint(level, tmp_path):
    weights, _ = run_small(level, tmp_path)
    weights_again, seen = run_small(level, tmp_path, resume=str(tmp_path / "checkpoint-4"))
    assert len(seen) == client_training.BATCHES
    assert differing(weights_again, weights) == []


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_apex_fused"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_bert_of_transformers_trains_and_resumes(level, optim, tmp_path):
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(0, 32, (4, 4, 8), generator=generator)
    examples = rows([(batch, batch[:, 0] % 3) for batch in words], "input_ids")
    options = {"optim": optim, "learning_rate": 0.01, "warmup_steps": 2}
    weights, losses = run(level, tmp_path, tiny_bert(transformers, 2), examples, **options)
    first = str(tmp_path / "checkpoint-4")
    weights_again, losses_again = run(level, tmp_path, tiny_bert(transformers, 2), examples, resume=first, **options)
    assert losses_again == losses and len(losses) == client_training.EPOCHS * 4
    assert differing(weights_again, weights) == []
