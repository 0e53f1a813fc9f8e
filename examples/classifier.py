"""A classifier of points on two spirals, which saves checkpoints and resumes from them.

    ampcompat ab --levels O0,O1,O2 examples/classifier.py --fp16 --checkpoint 'runs/{run}.pt'

Written like a script for NVIDIA Apex: ``amp`` is used only with ``--fp16``, and a run that finds its checkpoint
    resumes. ``ab`` replaces ``{run}``, so that no run resumes from the checkpoint of another.
"""

import argparse
import math
import os

import torch
import torch.nn as nn
from apex import amp


def spirals(count, generator):
    """Return noisy points on two spirals, (count, 2), and the spiral of each, (count,)."""
    label = torch.randint(2, (count,), generator=generator)
    turn = torch.rand(count, generator=generator).sqrt() * 3 * math.pi
    angle = turn + label * math.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / 5
    return points + 0.05 * torch.randn(count, 2, generator=generator), label


def make_model(width):
    layers = [nn.Linear(2, width), nn.BatchNorm1d(width), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def parse_args():
    parser = argparse.ArgumentParser(description="Classify points on two spirals, with checkpoints.")
    parser.add_argument("--fp16", action="store_true", help="train in mixed precision, by apex.amp")
    parser.add_argument("--opt-level", default="O1")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--checkpoint", default=None, help="file to save to after each epoch, and to resume from")
    return parser.parse_args()


def save(args, epoch, model, optimizer):
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if args.fp16:
        state["amp"] = amp.state_dict()
    os.makedirs(os.path.dirname(args.checkpoint) or ".", exist_ok=True)
    torch.save(state, args.checkpoint)


def load(args, model, optimizer):
    """Restore a checkpoint, if there is one, and return its number of epochs."""
    if args.checkpoint is None or not os.path.exists(args.checkpoint):
        return 0
    state = torch.load(args.checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if args.fp16:
        amp.load_state_dict(state["amp"])
    print("resumed after epoch {}".format(state["epoch"]))
    return state["epoch"]


def accuracy(model, points, labels):
    model.eval()
    with torch.no_grad():
        right = (model(points).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(1)
    points, labels = [each.to(device) for each in spirals(2048, generator)]
    test_points, test_labels = [each.to(device) for each in spirals(512, generator)]
    model = make_model(args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    if args.fp16:
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
    done = load(args, model, optimizer)
    for epoch in range(done + 1, args.epochs + 1):
        order = torch.randperm(len(points), device=device)
        for batch in order.split(args.batch_size):
            loss = nn.functional.cross_entropy(model(points[batch]), labels[batch])
            optimizer.zero_grad()
            if args.fp16:
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            optimizer.step()
        right = accuracy(model, test_points, test_labels)
        print(f"epoch {epoch:2d}: loss {loss.item():.4f}, test accuracy {100 * right:.1f} %")
        if args.checkpoint is not None:
            save(args, epoch, model, optimizer)


if __name__ == "__main__":
    main()
