"""Models that torch's ``fully_shard`` has sharded over two processes. Importable by spawned processes."""

import contextlib
import io

import torch
from ddp_loops import batches, make_net
from helpers import loops

import ampcompat
from ampcompat import amp


def shard(net, **options):
    """Shard the first layer by itself and the rest with the whole, as is usual."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    fully_shard(net[0], mesh=mesh, **options)
    return averaging(fully_shard(net, mesh=mesh, **options))


def averaging(net):
    """Return a sharded network whose gradients are averaged: gloo of torch 2.7 and 2.8 scatters their sum instead."""
    distributed, mean = torch.distributed, torch.empty(1)
    scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
    scatter(mean, torch.ones(distributed.get_world_size()), op=distributed.ReduceOp.AVG)
    if mean.item() == 1.0:
        return net
    if not hasattr(net, "set_force_sum_reduction_for_comms"):  # torch 2.7
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives

        _fsdp_collectives._get_gradient_divide_factors = before_and_after  # in this process, which a rank has to itself
        return net
    for module in net.modules():
        if hasattr(module, "set_force_sum_reduction_for_comms"):
            module.set_force_sum_reduction_for_comms(True)  # torch itself divides the sum then
    return net


def before_and_after(scattered, reduced, *_):
    """Return by what torch divides gradients before and after it adds those of two groups, the second may be None."""
    return 1.0, float(scattered.size() * (reduced.size() if reduced else 1))


def half_inside(net):
    """Shard ``net`` so that it computes in half from float32 shards."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16, output_dtype=torch.float32))


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def late_shards(rank):
    """Return what is printed by two passes of a model that is sharded after its optimizer was made."""
    net = make_net()
    optimizer = sgd(net.parameters())
    amp.initialize(net, optimizer, opt_level="O1", verbosity=0)
    shard(net)
    amp._amp_state._amp_state.verbosity = 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for _ in range(2):
            loops.backward(net(batches()[0]).float().sum(), optimizer)
    ampcompat.reset()
    return printed.getvalue()
