"""Train the same few steps in fresh processes and compare the weights bit for bit.

    python tests/scripts/same_numbers.py [--processes 20] [--levels O2 O4 O5]

Exits with 1 where two processes disagree. ``--once`` trains in this process and prints a digest for each level,
with so many ``--threads``.
"""

import argparse
import hashlib
import os
import subprocess
import sys

import torch

import ampcompat
from ampcompat import amp


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8)
        self.recurrent, self.head = torch.nn.LSTM(48, 16, batch_first=True), torch.nn.Linear(16, 10)

    def forward(self, image):
        rows = torch.relu(self.norm(self.convolution(image))).permute(0, 2, 1, 3).flatten(2)
        return self.head(self.recurrent(rows)[0][:, -1])


def digest(level, steps=4):
    """Return a digest of the weights after a few steps at a level."""
    torch.manual_seed(0)
    model, images, digits = Net(), torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    try:
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images).float(), digits)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
        values = [tensor.double().flatten() for tensor in list(amp.master_params(optimizer)) + [loss.detach()]]
        return hashlib.sha256(torch.cat(values).detach().numpy().tobytes()).hexdigest()[:16]
    finally:
        ampcompat.reset()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--levels", nargs="+", default=["O2", "O4", "O5"])
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--threads", type=int)
    stated = parser.parse_args()
    if stated.once:
        if stated.threads:
            torch.set_num_threads(stated.threads)
        print(" ".join(f"{level} {digest(level)}" for level in stated.levels))
        return 0
    # A sibling of this process each time, which has found out nothing yet.
    command = [sys.executable, os.path.abspath(__file__), "--once", "--levels"] + stated.levels
    answers = [subprocess.check_output(command, universal_newlines=True).strip() for _ in range(stated.processes)]
    for answer in sorted(set(answers)):
        print(f"{answers.count(answer)} of {len(answers)} processes: {answer}")
    return int(len(set(answers)) > 1)


if __name__ == "__main__":
    sys.exit(main())
