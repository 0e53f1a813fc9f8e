# A small transformer language model: the set-up is a function of its own, as in many repositories.
import argparse
import math
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp
from apex.normalization import FusedLayerNorm
from apex.optimizers import FusedAdam

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class TransformerLM(nn.Module):
    def __init__(self, ntoken, ninp, nhead, nlayers, context):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.position = nn.Parameter(torch.zeros(context, ninp))
        layers = [nn.TransformerEncoderLayer(ninp, nhead, 4 * ninp, dropout=0.0) for _ in range(nlayers)]
        self.layers = nn.ModuleList(layers)
        self.norm = FusedLayerNorm(ninp)
        self.decoder = nn.Linear(ninp, ntoken)

    def forward(self, tokens):
        mask = torch.triu(torch.full((len(tokens), len(tokens)), float("-inf"), device=tokens.device), 1)
        x = self.encoder(tokens) + self.position[: len(tokens)].unsqueeze(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.decoder(self.norm(x))


def get_batch(data, bptt, batch_size):
    starts = torch.randint(len(data) - bptt - 1, (batch_size,)).tolist()
    batch = torch.stack([data[start : start + bptt + 1] for start in starts], 1).to(device)
    return batch[:-1], batch[1:].reshape(-1)


def compute_loss(model, inputs, targets):
    logits = model(inputs)
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets)


@torch.no_grad()
def evaluate(model, data, args):
    """Return the mean loss over some windows."""
    model.eval()
    total = 0.0
    for _ in range(args.eval_batches):
        inputs, targets = get_batch(data, args.bptt, args.batch_size)
        total += compute_loss(model, inputs, targets).item()
    model.train()
    return total / args.eval_batches


def build(args, ntoken):
    model = TransformerLM(ntoken, args.emsize, args.nhead, args.nlayers, args.bptt).to(device)
    optimizer = FusedAdam(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01)
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, enabled=args.opt_level != "none")
    return model, optimizer


def train(model, optimizer, scheduler, data, args):
    for step in range(1, args.steps + 1):
        model.zero_grad()
        for _ in range(args.accumulation):
            inputs, targets = get_batch(data, args.bptt, args.batch_size)
            loss = compute_loss(model, inputs, targets) / args.accumulation
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), args.clip)
        optimizer.step()
        scheduler.step()
        if step % args.log_interval == 0:
            print(f"| step {step:5d} | loss {loss.item() * args.accumulation:5.3f}")


def main():
    parser = argparse.ArgumentParser(description="Transformer language model")
    parser.add_argument("--emsize", type=int, default=32)
    parser.add_argument("--nhead", type=int, default=2)
    parser.add_argument("--nlayers", type=int, default=2)
    parser.add_argument("--bptt", type=int, default=24)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eval_batches", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--log_interval", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--opt_level", default="O1", choices=["none", "O0", "O1", "O2", "O3", "O4", "O5"])
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    text = "\n".join(topics[name] for name in sorted(topics))[:60000]
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    model, optimizer = build(args, len(letters))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    train(model, optimizer, scheduler, data[:50000], args)
    loss = evaluate(model, data[50000:], args)
    print(f"| end | valid loss {loss:5.3f} | valid ppl {math.exp(loss):8.2f}")


if __name__ == "__main__":
    main()
