"""Train the same few steps at each level with two threads, and print a digest of the weights for each."""

import hashlib

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


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(" ".join(f"{level} {digest(level)}" for level in ("O2", "O4", "O5")))
