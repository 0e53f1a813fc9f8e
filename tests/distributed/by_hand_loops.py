"""Ranks that share their weights by hand, without a wrapper; importable by spawned processes."""

import torch
from ddp_loops import batches, make_net
from helpers import loops, ranks

from ampcompat import amp


def _param(param):
    torch.distributed.broadcast(param.detach(), 0)


def _data(param):
    torch.distributed.broadcast(param.data, 0)


def _itself(param):
    with torch.no_grad():
        torch.distributed.broadcast(param, 0)


WAYS = {"detached": _param, "data": _data, "itself": _itself}


def initialized(level, seed=1):
    """Return a network with weights of a seed, and its optimizer."""
    net = make_net(seed)
    return amp.initialize(net, torch.optim.SGD(net.parameters(), lr=0.1), opt_level=level, verbosity=0)


@ranks.at_each_level
def broadcast_by_hand(rank, level, way):
    """Train from a seed per rank, weights broadcast after ``initialize``, gradients averaged; return the masters."""
    net, optimizer = initialized(level, 10 + rank)
    for param in net.parameters():
        WAYS[way](param)
    for batch in batches():
        optimizer.zero_grad()
        loops.backward(net(batch[rank::2]).float().pow(2).mean(), optimizer)
        for param in amp.master_params(optimizer):
            torch.distributed.all_reduce(param.grad)
            param.grad.div_(2)
        optimizer.step()
    return {name: value.clone() for name, value in net.state_dict().items()}


@ranks.at_each_level
def layer_replaced_after_a_step(rank, level):
    """Do a step, replace the last layer, step with gradients of 0; return the other masters before and after."""
    net, optimizer = initialized(level)
    loops.step(net(batches()[0]).float().pow(2).mean(), optimizer)
    last = len(list(net[-1].parameters()))
    del optimizer.param_groups[0]["params"][-last:]
    kept = list(optimizer.param_groups[0]["params"])
    before = [param.detach().clone() for param in kept]
    net[-1] = torch.nn.Linear(net[-1].in_features, net[-1].out_features)
    optimizer.add_param_group({"params": net[-1].to(net[0].weight.dtype).parameters()})
    optimizer.zero_grad()
    loops.step(0.0 * net(batches()[0]).float().sum(), optimizer)
    return before, [param.detach().clone() for param in kept]


@ranks.at_each_level
def init_before_wrapping(rank, level):
    """Initialize weights again behind ``amp.initialize``, wrap, do not train; return the masters."""
    net, optimizer = initialized(level)
    for param in net.parameters():
        torch.nn.init.constant_(param, 0.25 + rank)
    torch.nn.parallel.DistributedDataParallel(net)
    return [param.detach().clone() for group in optimizer.param_groups for param in group["params"]]
