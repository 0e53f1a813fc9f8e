"""Trains a small BERT classifier by the Trainer of transformers: ``transformers_fit.py FOLDER [EPOCHS]``."""

import sys

from helpers import torchvision_operators  # noqa: F401 - before transformers imports torchvision

import torch  # isort: skip
import transformers

torch.manual_seed(0)
tokens = torch.randint(3, 32, (240, 8))
rows = [{"input_ids": row, "labels": row[0] % 3} for row in tokens]
config = transformers.BertConfig(
    vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, num_labels=3,
)  # fmt: skip
arguments = transformers.TrainingArguments(
    sys.argv[1], per_device_train_batch_size=16, num_train_epochs=float(sys.argv[2]) if len(sys.argv) > 2 else 4.0,
    learning_rate=1e-3, warmup_steps=5, gradient_accumulation_steps=1, max_grad_norm=1.0, logging_steps=1,
    save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
)  # fmt: skip
model = transformers.BertForSequenceClassification(config)
transformers.Trainer(model, arguments, train_dataset=rows).train()
