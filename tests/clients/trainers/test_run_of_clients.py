"""``run --device cpu``: scripts of clients that need CUDA, each in a process of its own."""

import os

import pytest
from helpers import client_modules
from helpers.processes import ROOT, RUN, environment, python

client_modules.imported_with_apex("pytorch_lightning", "trainers")
client_modules.imported_with_apex("transformers", "trainers")

HEAD = """
from helpers import torchvision_operators  # what torchvision lacks here; nothing of the clients
import sys
import torch
"""
SCRIPTS = {
    "lightning": """
import pytorch_lightning as pl

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        output = self(batch[0])
        print("computed in", self.net.weight.dtype)
        return torch.nn.functional.cross_entropy(output, batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

data = torch.utils.data.TensorDataset(torch.randn(8, 6), torch.arange(8) % 3)
trainer = pl.Trainer(accelerator="gpu", devices=1, precision=16, amp_backend="apex", amp_level=sys.argv[1],
                     max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
print("steps:", trainer.global_step)
""",
    "transformers": """
import transformers

config = transformers.BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                 intermediate_size=32, max_position_embeddings=16, num_labels=3)
model = transformers.BertForSequenceClassification(config)
model.bert.pooler.register_forward_hook(lambda module, inputs, output: print("computed in", output.dtype))
words = torch.randint(0, 32, (8, 8))
arguments = transformers.TrainingArguments(sys.argv[2], fp16=True, half_precision_backend="apex",
                                           fp16_opt_level=sys.argv[1], per_device_train_batch_size=4,
                                           num_train_epochs=1, save_strategy="no",
                                           report_to=[], disable_tqdm=True)
rows = [{"input_ids": row, "labels": row[0] % 3} for row in words]
trainer = transformers.Trainer(model, arguments, train_dataset=rows)
trainer.train()
print("steps:", trainer.state.global_step)
""",
}


@pytest.mark.parametrize("client, level", [("lightning", "O2"), ("transformers", "O1")])
def test_a_script_that_insists_on_cuda_runs(client, level, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(HEAD + SCRIPTS[client])
    path = os.pathsep.join([ROOT, os.path.join(ROOT, "tests")])
    env = environment(
        PYTHONPATH=path, DS_ACCELERATOR="cpu"
    )  # accelerate imports DeepSpeed, which seeks CUDA's compiler
    process = python(*RUN, "--device", "cpu", script, level, tmp_path, env=env)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("computed in torch.float16") == 2 and "steps: 2" in process.stdout
