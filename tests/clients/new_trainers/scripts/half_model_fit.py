"""Trains a small GPT-2, saved in bfloat16, by the Trainer of transformers: ``half_model_fit.py FOLDER DTYPE``."""

import sys

from helpers import torchvision_operators  # noqa: F401 - before transformers imports torchvision

import torch  # isort: skip
import transformers

torch.manual_seed(0)
config = transformers.GPT2Config(
    vocab_size=64, n_positions=16, n_embd=64, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
)
transformers.GPT2LMHeadModel(config).to(torch.bfloat16).save_pretrained(sys.argv[1] + "/saved")
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/saved", dtype=sys.argv[2])
starts, strides = torch.randint(0, 64, (512, 1)), torch.randint(1, 3, (512, 1))
data = [{"input_ids": row, "labels": row} for row in (starts + strides * torch.arange(16)) % 64]
arguments = transformers.TrainingArguments(
    sys.argv[1] + "/out", max_steps=150, per_device_train_batch_size=16, learning_rate=1e-4, warmup_steps=5,
    lr_scheduler_type="constant_with_warmup", logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
    use_cpu=True,
)  # fmt: skip
transformers.Trainer(model, arguments, train_dataset=data).train()
