"""A small transformer that learns English letter by letter, written like a script for NVIDIA Apex.

    ampcompat run examples/char_transformer.py --opt-level O2

The text is the documentation of the Python language that comes with every Python (``pydoc_data.topics``); nothing is
downloaded. The output layer shares its weight with the embedding.
"""

import argparse
import math
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # all other characters are read as spaces


class Block(nn.Module):
    """Causal self-attention and a feed-forward part, each after a layer norm and added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attend(self, x, mask):
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x, mask):
        x = x + self.attend(self.norm1(x), mask)
        return x + self.down(F.relu(self.up(self.norm2(x))))


class CharTransformer(nn.Module):
    def __init__(self, vocabulary, context, width, heads, layers):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.05)
        self.head.weight = self.embedding.weight

    def forward(self, letters):
        length = letters.size(1)
        mask = torch.ones(length, length, device=letters.device).triu(1) > 0
        x = self.embedding(letters) + self.position[:length]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def load_text(device):
    """Return the letters of the text as numbers: (training part, validation part); the last tenth is for validation."""
    text = "\n".join(topics[name] for name in sorted(topics))
    number = {letter: i for i, letter in enumerate(ALPHABET)}
    letters = torch.tensor([number.get(letter, number[" "]) for letter in text], device=device)
    split = len(letters) * 9 // 10
    return letters[:split], letters[split:]


def loss_of(model, windows):
    """Return the mean loss of predicting each letter of the windows from those before it, in nats."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), windows[:, 1:].reshape(-1))


def validate(model, letters, context, batch_size, limit=64):
    """Return the mean loss over windows spread evenly over the validation text."""
    starts = torch.linspace(0, len(letters) - context - 1, limit).long().tolist()
    windows = torch.stack([letters[start : start + context + 1] for start in starts])
    model.eval()
    with torch.no_grad():
        losses = [loss_of(model, part).item() * len(part) for part in windows.split(batch_size)]
    model.train()
    return sum(losses) / len(windows)


def parse_args():
    parser = argparse.ArgumentParser(description="Train a character-level transformer with apex.amp.")
    parser.add_argument("--opt-level", default="O1")
    parser.add_argument("--loss-scale", default=None, help='a number or "dynamic"')
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=4e-3)
    # An eps that is not 0 in float16: at O3, Adam's state is half, and the usual 1e-8 becomes 0.
    parser.add_argument("--eps", type=float, default=1e-4, help="of Adam")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, validation = load_text(device)

    model = CharTransformer(len(ALPHABET), args.context, args.width, args.heads, args.layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98), eps=args.eps)
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, loss_scale=args.loss_scale)

    def rate(step):  # a short warm-up, then cosine decay to zero
        return min(1.0, (step + 1) / 20) * (1 + math.cos(math.pi * step / args.steps)) / 2

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(train) - args.context, (args.batch_size,)).tolist()
        loss = loss_of(model, torch.stack([train[start : start + args.context + 1] for start in starts]))
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 50 == 0 or step == args.steps:
            print(f"step {step:4d}: loss {loss.item():.4f}")
    loss = validate(model, validation, args.context, args.batch_size)
    print(f"validation loss: {loss:.4f} nats per letter ({loss / math.log(2):.4f} bits)")


if __name__ == "__main__":
    main()
