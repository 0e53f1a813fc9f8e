"""Trains a small GPT in a loop like nanoGPT's: ``nanogpt_fit.py [UPDATES]``.

Batches are drawn from one array of tokens; the loss of each is divided by the accumulation steps; clipping; a learning
rate that is written into the param groups.
"""

import contextlib
import math
import sys

import torch
from torch import nn
from torch.nn import functional

BLOCK, WIDTH, HEADS, VOCABULARY, ACCUMULATION = 16, 32, 2, 12, 2


class Block(nn.Module):
    """Attention and a perceptron, each after a layer norm."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        """Return the residual stream, of shape (batch, time, width)."""
        heads = [each.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for each in self.qkv(self.first(x)).chunk(3, -1)]
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(attended)
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    """A decoder whose head shares the token embedding's weight."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.1)

    def forward(self, inputs, targets):
        """Return the logits and the loss."""
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        logits = self.head(self.norm(self.blocks(x)))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch():
    """Return inputs and targets drawn from the text."""
    starts = torch.randint(len(text) - BLOCK - 1, (8,))
    windows = torch.stack([text[start : start + BLOCK + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


torch.manual_seed(1337)
text = (torch.arange(4096) * 5 + torch.randint(2, (4096,))) % VOCABULARY
updates = int(sys.argv[1]) if len(sys.argv) > 1 else 80
casts = "--amp" in sys.argv
region = torch.autocast("cpu", dtype=torch.bfloat16) if casts else contextlib.nullcontext()
scaler = torch.amp.GradScaler("cpu", enabled=casts)
model = GPT()
decayed = [param for param in model.parameters() if param.dim() > 1]
others = [param for param in model.parameters() if param.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
for update in range(updates):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * min(1.0, (update + 1) / 10) * (0.55 + 0.45 * math.cos(math.pi * update / updates))
    for _ in range(ACCUMULATION):
        inputs, targets = batch()
        with region:
            _, loss = model(inputs, targets)
            loss = loss / ACCUMULATION
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
