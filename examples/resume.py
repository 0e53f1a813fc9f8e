"""Training that can be killed at any time and resumed, with bitwise the same result as an uninterrupted run.

    ampcompat run examples/resume.py --checkpoint /tmp/run.pt --opt-level O2

Written like a script for NVIDIA Apex: it does not use ampcompat. After an interruption (Ctrl-C, kill -9, a power cut),
    start it again with the same arguments, and it continues from its checkpoint. The data are points of a noisy curve.
"""

import argparse
import os

import torch
import torch.nn as nn
from apex import amp


class Net(nn.Module):
    """A small network with batch norm and dropout, whose state must be restored when resuming."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 32)
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.1)
        self.outer = nn.Linear(32, 1)

    def forward(self, x):
        return self.outer(self.drop(torch.relu(self.norm(self.inner(x)))))


def make_data():
    """Return noisy points of a sine, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(512, 1, generator=generator) * 6.0
    return x, torch.sin(x) + 0.1 * torch.randn(512, 1, generator=generator)


def save(path, step, model, optimizer, scheduler):
    """Write a checkpoint atomically."""
    checkpoint = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "amp": amp.state_dict(),
        "random": torch.get_rng_state(),
    }
    torch.save(checkpoint, path + ".new")
    os.replace(path + ".new", path)  # atomic, even if the process is killed


def load(path, model, optimizer, scheduler):
    """Restore a checkpoint and return its step; 0 without one."""
    if not os.path.exists(path):
        return 0
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    amp.load_state_dict(checkpoint["amp"])
    torch.set_rng_state(checkpoint["random"])
    print("resumed after step {}".format(checkpoint["step"]), flush=True)
    return checkpoint["step"]


def parse_args():
    parser = argparse.ArgumentParser(description="Train with checkpoints from which a killed run can resume.")
    parser.add_argument("--checkpoint", required=True, help="file to save to and to resume from")
    parser.add_argument("--opt-level", default="O2")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--lr", type=float, default=0.01)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    x, y = make_data()
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, verbosity=0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.5)
    done = load(args.checkpoint, model, optimizer, scheduler)
    for step in range(done + 1, args.steps + 1):
        batch = torch.randint(0, len(x), (64,))
        loss = nn.functional.mse_loss(model(x[batch]).float(), y[batch])
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        scheduler.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        if step % args.every == 0 or step == args.steps:
            save(args.checkpoint, step, model, optimizer, scheduler)


if __name__ == "__main__":
    main()
