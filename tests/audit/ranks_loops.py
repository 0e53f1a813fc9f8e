"""Trainings of two ranks that add up gradients in some dtype, within an audit."""

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from ampcompat.diagnostics.audit.audit import Audit

STEPS = 3


def audited(rank, kind, dtype):
    """Train as ``kind`` says; return the dtypes of the report and the kinds of findings."""
    dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    with Audit([]) as audit:
        globals()[kind](model, dtype)
    report = audit.report()
    return report["dtypes"]["sums between ranks"], [each["kind"] for each in report["findings"]]


def _train(model, after=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dtype = next(model.parameters()).dtype
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, dtype=dtype)).float().pow(2).mean()
        loss.backward()
        if after is not None:
            after()
        torch.distributed.all_reduce(loss.detach())  # a number, which is no sum of gradients
        optimizer.step()


def ddp(model, dtype):
    """DistributedDataParallel of weights of this dtype."""
    _train(DistributedDataParallel(model.to(dtype)))


def compressed(model, dtype):
    """DistributedDataParallel of float32 weights with a hook that sends gradients in this dtype."""
    model = DistributedDataParallel(model)
    model.register_comm_hook(None, lambda state, bucket: default_hooks._compress_hook(dtype, None, bucket))
    _train(model)


def compressed_in_cpp(model, dtype):
    """The same by torch's hook in C++, which knows float16 only."""
    model = DistributedDataParallel(model)
    model._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.FP16_COMPRESS)
    _train(model)


def unscaled(model, dtype):
    """DistributedDataParallel under autocast in this dtype, with small gradients and no scaler."""
    model = DistributedDataParallel(model)
    torch.manual_seed(torch.distributed.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = (model(torch.randn(4, 8)).float() * 1e-5).sum()
        loss.backward()
        optimizer.step()


def by_hand(model, dtype):
    """The script adds up gradients in this dtype."""

    def reduce():
        for param in model.parameters():
            grad = param.grad.to(dtype)
            torch.distributed.all_reduce(grad)
            param.grad.copy_(grad / 2)

    _train(model, after=reduce)


def sharded(model, dtype):
    """``fully_shard`` with bfloat16 params that adds up gradients in this dtype."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=dtype)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)), mp_policy=policy)
    _train(model)
