"""Ways to spread training over ranks: wrapped, sharded, with compressed gradients, split layers and stages.

Importable by spawned processes.
"""

import functools
import inspect

import torch
from ddp_loops import batches, make_net
from helpers import loops
from sharded_loops import half_inside, shard

import ampcompat
from ampcompat import amp
from ampcompat.apex import parallel
from ampcompat.errors import AmpError

SCALE = 2.0**10  # no overflow in half all-reduces


def every_way(rank, cases):
    """Return the outcome of each (way, level)."""
    outcomes = {}
    for way, level in cases:
        try:
            outcomes[way, level] = globals()[way](rank, level)
        finally:
            ampcompat.reset()
    return outcomes


def train(net, optimizer, forward, inputs, level):
    """Train with one infinite loss on the last rank.

    Returns:
        The skips and the loss scale in the end, the weights, and evaluations before each step.
    """
    last = torch.distributed.get_world_size() - 1 if torch.distributed.is_initialized() else 0
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    skips, seen = [], []
    for step, batch in enumerate(inputs):
        with torch.no_grad():
            seen.append(forward(batches()[0]).float())
        optimizer.zero_grad()
        loss = forward(batch).float().pow(2).mean()
        if step == 2 and rank == last and level in ("O1", "O2"):
            loss = loss * float("inf")
        loops.backward(loss, optimizer)
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 10.0)
        optimizer.step()
        skips.append(amp.step_was_skipped(optimizer))
    weights = {name: v.full_tensor() if hasattr(v, "full_tensor") else v for name, v in net.state_dict().items()}
    return skips + [scale_now()], weights, torch.stack(seen)


def scale_now():
    return amp.state_dict()["loss_scaler0"]["loss_scale"]


def one_process(level):
    """Return the outcome of one process on the whole batches."""
    net = make_net()
    try:
        optimizer = _initialized(net, torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-4), level)
        return train(net, optimizer, net, batches(), level)
    finally:
        ampcompat.reset()


def _initialized(net, optimizer, level):
    return amp.initialize(net, optimizer, opt_level=level, init_scale=SCALE, verbosity=0)[1]


def _train_share(net, rank, level, wrap=lambda net: net):
    """Train a network, wrapped once amp knows it, on this rank's share of the batches."""
    optimizer = _initialized(net, torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-4), level)
    return train(net, optimizer, wrap(net), [batch[rank::2] for batch in batches()], level)


def wrapped_by_torch(rank, level):
    """Train under DistributedDataParallel what every rank made of a seed of its own."""
    return _train_share(make_net(1 + rank), rank, level, torch.nn.parallel.DistributedDataParallel)


def wrapped_by_apex(rank, level):
    """Train under Apex's DistributedDataParallel what every rank made of a seed of its own, with several messages."""
    wrap = functools.partial(parallel.DistributedDataParallel, message_size=50)
    return _train_share(make_net(1 + rank), rank, level, wrap)


def sharded_state(rank, level):
    """Train with ``ZeroRedundancyOptimizer`` under DistributedDataParallel; a session before it is closed again."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = make_net()
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01, eps=1e-4)
    _initialized(net, optimizer, level)
    ampcompat.reset()
    optimizer = _initialized(net, optimizer, level)
    held = [param for group in optimizer.optim.param_groups for param in group["params"]]
    assert {param.dtype for param in held} == {torch.float32} and 0 < len(held) < len(list(net.parameters()))
    model = torch.nn.parallel.DistributedDataParallel(net)
    return train(net, optimizer, model, [batch[rank::2] for batch in batches()], level)


def compressed(rank, level):
    """Train under DistributedDataParallel with gradients that are all-reduced in float16 (bfloat16 needs NCCL)."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    def wrap(net):
        model = torch.nn.parallel.DistributedDataParallel(net)
        model.register_comm_hook(None, fp16_compress_hook)
        return model

    return _train_share(make_net(), rank, level, wrap)


def sharded(rank, level):
    """Train under ``fully_shard``."""
    return _train_share(shard(make_net()), rank, level)


def sharded_in_half(rank, level):
    """Train under ``fully_shard`` with a policy that computes in half from float32 shards."""
    return _train_share(half_inside(make_net()), rank, level)


def split_layers(rank, level):
    """Train with the rows of one layer and the columns of the next split over the ranks (tensor parallelism)."""
    from torch.distributed.device_mesh import init_device_mesh

    net = _with_split_layers(init_device_mesh("cpu", (2,)))
    optimizer = _initialized(net, torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-4), level)
    return train(net, optimizer, net, batches(), level)


def _with_split_layers(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(make_net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def split_and_sharded(rank, level):
    """Train with layers split over the ranks, and what each rank has of them under ``fully_shard``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("samples", "layers"))
    net = fully_shard(_with_split_layers(mesh["layers"]), mesh=mesh["samples"])
    optimizer = _initialized(net, torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-4), level)
    return train(net, optimizer, net, batches(), level)


def stages(rank, level):
    """Train two pipeline stages, one layer each; return the skips and the weights of this rank's stage."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    whole = make_net()
    net = whole[:2] if rank == 0 else torch.nn.Sequential(whole[2])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-4)
    options = {"opt_level": level, "init_scale": SCALE, "process_group": True, "verbosity": 0}
    amp.initialize(net, optimizer, **options)
    stage, skips = PipelineStage(net, rank, 2, torch.device("cpu")), []
    averages = "scale_grads" in inspect.signature(ScheduleGPipe).parameters  # torch 2.6 adds micro-batches up
    for step, batch in enumerate(batches()):
        optimizer.zero_grad()
        # The schedule calls backward on each micro-batch's loss: scale_loss yields what to multiply it by.
        with amp.scale_loss(torch.tensor(float("inf") if step == 2 and level == "O1" else 1.0), optimizer) as scale:
            by = scale if averages else scale / 2
            schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, _, by=by: out.float().pow(2).mean() * by)
            schedule.step(batch) if rank == 0 else schedule.step(target=torch.zeros(8))
        optimizer.step()
        skips.append(amp.step_was_skipped(optimizer))
    names = {"0.weight": "2.weight", "0.bias": "2.bias"} if rank == 1 else {}
    return skips + [scale_now()], {names.get(name, name): value for name, value in net.state_dict().items()}


def refusals(rank):
    """Return what is said of FSDP1 at O1, and of a ``ZeroRedundancyOptimizer`` with buckets at O2."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped, net = FullyShardedDataParallel(make_net(), device_id=torch.device("cpu")), make_net()
    pairs = [
        (wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1), "O1"),
        (net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1, parameters_as_bucket_view=True), "O2"),
    ]
    said = []
    for model, optimizer, level in pairs:
        try:
            _initialized(model, optimizer, level)
        except AmpError as error:
            said.append(str(error))
    return said
