"""A script for Apex in which the output of the module ``scaled`` overflows float16 from step 20 on.

With the argument "nan", its inputs contain nan from step 12 on, so that no level can train it.
"""

import sys

import torch
from apex import amp


class ScaledLinear(torch.nn.Module):
    """A linear layer whose output is multiplied by a factor."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)
        self.factor = 1.0

    def forward(self, x):
        return self.linear(x) * self.factor


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.scaled = ScaledLinear()
        self.last = torch.nn.Linear(32, 1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.scaled(x)) / self.scaled.factor
        return self.last(x)


def main(steps=40):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for step in range(steps):
        model.scaled.factor = 1e6 if step >= 20 else 1.0
        x = torch.randn(64, 16)
        target = x.sum(1, keepdim=True)
        if step >= 12 and "nan" in sys.argv:
            x[3, 5] = float("nan")
        loss = (model(x).float() - target).pow(2).mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
