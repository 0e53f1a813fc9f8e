"""Levels forced on a loop with Accelerate: accumulation, clipping, its own optimizer and scheduler. Audits of FSDP2."""

import warnings

import pytest
import torch
from helpers import client_modules, forced_trainings, ranks
from torch import nn

import ampcompat

accelerate = client_modules.imported("accelerate", "new-trainers")


def fit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = torch.utils.data.TensorDataset(torch.randn(32, 6), torch.arange(32) % 3)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared, optimizer, scheduler, loader = accelerator.prepare(
        model, optimizer, scheduler, torch.utils.data.DataLoader(data, batch_size=4)
    )
    losses = []
    for inputs, targets in loader:
        with accelerator.accumulate(prepared):
            loss = nn.functional.cross_entropy(prepared(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, accelerator.unwrap_model(prepared)


@pytest.mark.parametrize("level", forced_trainings.LEVELS)
def test_a_loop_of_accelerate_trains_at_a_forced_level_as_unchanged(level):
    forced_trainings.assert_trains_as_unchanged(fit, level)


def audited_shards(rank, dtype, mixed_precision):
    """Return what is wrong in training that Accelerate shards by FSDP2, and the class and dtype of its weights."""
    warnings.simplefilter("ignore")  # Accelerate's own
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    accelerator = accelerate.Accelerator(cpu=True)
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2)
    if mixed_precision is not None:
        plugin.set_mixed_precision(mixed_precision)
    # Accelerate shards on GPUs only, unless it is told that it does.
    shared = accelerate.state.AcceleratorState._shared_state
    shared.update(distributed_type=accelerate.DistributedType.FSDP, fsdp_plugin=plugin)
    model, optimizer = accelerator.prepare(model, optimizer)
    with ampcompat.audit([]) as audit:
        for _ in range(8):
            optimizer.zero_grad()
            accelerator.backward(model(torch.randn(8, 16, dtype=dtype)).float().pow(2).mean())
            optimizer.step()
    param = next(model.parameters())
    return [each["kind"] for each in audit.wrong], type(param).__name__, param.dtype


FULL, HALF = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    "dtype, mixed_precision, wrong", [(FULL, None, []), (FULL, "bf16", []), (HALF, None, ["lost_updates"])]
)
def test_two_ranks_of_fsdp2_are_audited_as_one_process(dtype, mixed_precision, wrong):
    for found in ranks.run(audited_shards, dtype, mixed_precision):
        assert found == (wrong, "DTensor", dtype)
