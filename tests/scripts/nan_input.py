"""A script for Apex whose inputs contain nan from step 12 on, so that no level can train it."""

import torch
from apex import amp


def main(steps=30):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for step in range(steps):
        x = torch.randn(64, 16)
        target = x.sum(1, keepdim=True)
        if step >= 12:
            x[3, 5] = float("nan")
        loss = (model(x).float() - target).pow(2).mean()
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
