"""Handwritten digits with a small CNN, written like a script for NVIDIA Apex: it does not use ampcompat.

    ampcompat run examples/digits_cnn.py --opt-level O2

The data are the 1,797 digits of 8 by 8 pixels that scikit-learn ships; nothing is downloaded.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp
from sklearn.datasets import load_digits


class Net(nn.Module):
    """Two convolutions with batch norm, then one linear layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.view(x.size(0), -1))


def load_data(device):
    """Return (train images, train labels, test images, test labels); every fifth digit is for testing."""
    digits = load_digits()
    images = torch.tensor(digits.images.tolist(), device=device).unsqueeze(1) / 16
    labels = torch.tensor(digits.target.tolist(), device=device)
    test = torch.arange(len(labels), device=device) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]


def accuracy(model, images, labels):
    """Return the percentage of digits that are classified correctly."""
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum().item()
    model.train()
    return 100.0 * right / len(labels)


def parse_args():
    parser = argparse.ArgumentParser(description="Train a CNN on scikit-learn's digits with apex.amp.")
    parser.add_argument("--opt-level", default="O1")
    parser.add_argument("--loss-scale", default=None, help='a number or "dynamic"')
    parser.add_argument("--keep-batchnorm-fp32", default=None)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=None, help="stop after this many steps")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, labels, test_images, test_labels = load_data(device)

    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    model, optimizer = amp.initialize(
        model,
        optimizer,
        opt_level=args.opt_level,
        keep_batchnorm_fp32=args.keep_batchnorm_fp32,
        loss_scale=args.loss_scale,
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=max(1, args.epochs * 2 // 3), gamma=0.1)

    step = 0
    for epoch in range(1, args.epochs + 1):
        total = 0.0
        batches = torch.randperm(len(labels)).to(device).split(args.batch_size)
        for batch in batches:
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
            step += 1
            if step == args.steps:
                print(f"stopped after step {step}: loss {loss.item():.4f}")
                return
        scheduler.step()
        print(f"epoch {epoch:2d}: loss {total / len(labels):.4f}")
    print(f"test accuracy: {accuracy(model, test_images, test_labels):.2f} %")


if __name__ == "__main__":
    main()
