"""A script for Apex with a fault: from step 20 on a module named ``volcano`` puts out what float16 cannot hold."""

import torch
from apex import amp


class Volcano(torch.nn.Module):
    """A linear layer whose output grows a hundred-thousandfold at step 20, and shrinks again behind it."""

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
        self.volcano = Volcano()
        self.last = torch.nn.Linear(32, 1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.volcano(x)) / self.volcano.factor
        return self.last(x)


def main(steps=40):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for step in range(steps):
        model.volcano.factor = 1e6 if step >= 20 else 1.0
        x = torch.randn(64, 16)
        loss = (model(x).float() - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
