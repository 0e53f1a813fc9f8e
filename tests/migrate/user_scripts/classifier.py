"""A classifier of noisy points with argparse, evaluation and resuming, as users of Apex write one."""

import argparse
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from apex import amp
except ImportError:
    amp = None


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fp16", action="store_true", help="mixed precision with apex")
    parser.add_argument("--opt_level", type=str, default="O1", help="apex AMP level: O0, O1, O2, O3")
    parser.add_argument("--loss_scale", type=str, default=None)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--resume", default="", help="checkpoint to go on from")
    parser.add_argument("--save", default="", help="where to write checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_loaders(batch_size):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(640, 16, generator=generator)
    y = (x[:, :4] + 0.3 * torch.randn(640, 4, generator=generator)).argmax(1)
    train, test = TensorDataset(x[:512], y[:512]), TensorDataset(x[512:], y[512:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)


def evaluate(model, loader, criterion, device):
    model.eval()
    loss_sum, right, count = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss_sum += loss.item() * len(targets)
            right += (outputs.argmax(1) == targets).sum().item()
            count += len(targets)
    model.train()
    return loss_sum / count, 100.0 * right / count


def train_epoch(args, model, loader, criterion, optimizer, device):
    total = 0.0
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        optimizer.zero_grad()
        if args.fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        if args.fp16:
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 5.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def save_checkpoint(path, args, epoch, model, optimizer):
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if args.fp16:
        state["amp"] = amp.state_dict()
    torch.save(state, path)


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader, test_loader = make_loaders(args.batch_size)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    if args.fp16:
        if amp is None:
            raise ImportError("Please install apex from https://www.github.com/nvidia/apex to use fp16 training.")
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, loss_scale=args.loss_scale)

    start = 0
    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume, map_location=device)
        start = checkpoint["epoch"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        if args.fp16:
            amp.load_state_dict(checkpoint["amp"])

    for epoch in range(start, args.epochs):
        train_loss = train_epoch(args, model, train_loader, criterion, optimizer, device)
        test_loss, accuracy = evaluate(model, test_loader, criterion, device)
        print(f"epoch {epoch}: train loss {train_loss:.4f}, test loss {test_loss:.4f}, accuracy {accuracy:.1f} %")
        if args.save:
            save_checkpoint(args.save, args, epoch + 1, model, optimizer)


if __name__ == "__main__":
    main()
