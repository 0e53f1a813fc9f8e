"""The network and the batches of the distributed tests; importable by spawned processes."""

import torch

STEPS = 4


def make_net(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def batches():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(8, 6, generator=generator) for _ in range(STEPS)]
