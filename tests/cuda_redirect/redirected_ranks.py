"""What one rank of a script for NCCL and a GPU per process does; importable by processes of ``ranks``."""

import torch
from torch import nn

from ampcompat.cuda_redirect import redirect_device


def train(rank, folder):
    """Return (backend, current device, reduced tensor, mean of the batch norm, gradient, rank 0's gradient)."""
    torch.distributed.barrier()  # the other rank may not be connected yet
    torch.distributed.destroy_process_group()  # the group that ``ranks`` made
    with redirect_device("cpu"):
        torch.cuda.set_device(rank)
        meeting = f"file://{folder}/redirected"
        torch.distributed.init_process_group("nccl", init_method=meeting, rank=rank, world_size=2)
        total = torch.full((2,), rank + 1.0, device=torch.device("cuda", rank))
        torch.distributed.all_reduce(total)
        torch.distributed.barrier()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to(f"cuda:{rank}")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        parallel = nn.parallel.DistributedDataParallel(model, device_ids=[rank], output_device=rank)
        x = torch.arange(8.0, device="cuda").view(4, 2)[2 * rank : 2 * rank + 2]
        parallel(x * x).pow(3).sum().backward()
        expected = model[0](torch.arange(8.0).view(4, 2).pow(2)).mean(0).detach() * 0.1
        mine, first = [model[0].weight.grad.clone() for _ in range(2)]
        torch.distributed.broadcast(first, 0)
        mean = (model[1].running_mean, expected)
        return torch.distributed.get_backend(), torch.cuda.current_device(), total, mean, mine, first
