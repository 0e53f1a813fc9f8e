"""What each rank of the tests of ``apex.parallel`` does; importable by spawned processes."""

import copy
import pickle

import torch
import torch.distributed as dist
from helpers import half_kernels
from torch.utils.checkpoint import checkpoint

from ampcompat.apex.parallel import DistributedDataParallel, Reducer
from ampcompat.apex.parallel.buckets import flat_dist_call


def make_net(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).double()


def batch(rank, step=0):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(8, 6, generator=generator)


def loss_of(net, rank, step=0):
    return net(batch(rank, step).double()).pow(2).mean()


def gradients(net):
    return [None if param.grad is None else param.grad.clone() for param in net.parameters()]


#: Flags of the constructor, and what they make of the two ranks' gradients: (flags, factor of their sum).
FLAGS = {
    "defaults": ({}, 0.5),
    "delayed": ({"delay_allreduce": True}, 0.5),
    "one message per param": ({"message_size": 1}, 0.5),
    "one message": ({"message_size": 10**9}, 0.5),
    "predivided": ({"gradient_predivide_factor": 4.0}, 0.5),
    "predivided by its older name": ({"gradient_average_split_factor": 4.0}, 0.5),
    "predivided by the world": ({"gradient_predivide_factor": 2.0}, 0.5),
    "summed": ({"gradient_average": False}, 1.0),
    "predivided and summed": ({"gradient_average": False, "gradient_predivide_factor": 4.0}, 0.25),
    "in float32": ({"allreduce_always_fp32": True}, 0.5),
    "two groups": ({"num_allreduce_streams": 2, "message_size": 1}, 0.5),
    "buffers kept": ({"retain_allreduce_buffers": True, "message_size": 60}, 0.5),
    "profiled": ({"prof": True}, 0.5),
}


def every_flag(rank):
    """Return the gradients after two passes (gradients cleared between them) under each flag."""
    results = {}
    for name, (flags, _) in FLAGS.items():
        net = make_net()
        model = DistributedDataParallel(net, **flags)
        for step in range(2):
            net.zero_grad()
            loss_of(model, rank, step).backward()
        results[name] = gradients(net)
        if flags.get("retain_allreduce_buffers"):
            kept = torch.cat([buffer for buffer in model.allreduce_buffers])
            results["kept"] = torch.sort(kept)[0], torch.sort(torch.cat([grad.view(-1) for grad in results[name]]))[0]
            results["shares memory"] = {param.grad.storage().data_ptr() for param in net.parameters()} == {
                buffer.storage().data_ptr() for buffer in model.allreduce_buffers
            }
    net = make_net()
    triggers = [net[2].weight, net[0].bias]
    model = DistributedDataParallel(net, allreduce_trigger_params=triggers)
    loss_of(model, rank, 1).backward()
    results["triggers"] = gradients(net)
    results["trigger sizes"] = [len(bucket.params) for bucket in model._reduction.buckets]
    net = make_net()
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    flags = {"num_allreduce_streams": 2, "allreduce_communicators": (groups, [None, None]), "message_size": 1}
    loss_of(DistributedDataParallel(net, **flags), rank, 1).backward()
    results["communicators"] = gradients(net)
    return results


class Branches(torch.nn.Module):
    """Three layers, of which a pass uses one; the output comes in a container."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 2).double() for _ in range(3)])

    def forward(self, inputs, which):
        return {"out": [self.layers[which](inputs)]}


def unused(rank):
    """Return the gradients where rank 0 used layer 0, rank 1 used layer 1, and no rank layer 2."""
    results = []
    for flags in ({}, {"delay_allreduce": True}, {"message_size": 1}):
        model = DistributedDataParallel(Branches(), **flags)
        model(batch(rank).double(), rank)["out"][0].sum().backward()
        results.append(gradients(model))
    return results


class Tied(torch.nn.Module):
    """One layer used twice, its weight also under another name; both uses recomputed if ``recomputes``."""

    def __init__(self, recomputes):
        super().__init__()
        torch.manual_seed(6)
        self.first = torch.nn.Linear(6, 6).double()
        self.second = torch.nn.Linear(6, 6).double()
        self.second.weight = self.first.weight
        self.recomputes = recomputes

    def forward(self, inputs):
        for layer in (self.first, self.second):
            inputs = checkpoint(layer, inputs, **RECOMPUTES) if self.recomputes else layer(inputs)
        return inputs


#: torch requires this argument since 2.4 and accepts it since 1.11.
RECOMPUTES = {"use_reentrant": True} if "use_reentrant" in checkpoint.__code__.co_varnames else {}


def shared(rank):
    """Return the gradients of shared params: plain, and under reentrant checkpointing; and the error without delay."""
    results = []
    for recomputes, delays in ((False, False), (False, True), (True, True)):
        model = DistributedDataParallel(Tied(recomputes), delay_allreduce=delays, message_size=1)
        model(batch(rank).double().requires_grad_()).sum().backward()
        results.append(gradients(model))
    model = DistributedDataParallel(Tied(True), message_size=1)
    try:
        model(batch(rank).double().requires_grad_()).sum().backward()
    except RuntimeError as error:
        results.append(str(error))
    return results


def accumulated(rank):
    """Return gradients before and after the switch: two passes of this rank alone, then one that is reduced."""
    net = make_net()
    model = DistributedDataParallel(net)
    model.disable_allreduce()
    for step in range(2):
        loss_of(model, rank, step).backward()
    alone = gradients(net)
    model.enable_allreduce()
    loss_of(model, rank, 2).backward()
    return alone, gradients(net)


class Failing(torch.autograd.Function):
    """Raises in backward."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, grad):
        raise KeyError("stop")


def interrupted(rank):
    """Return the gradients after ``torch.autograd.grad``, and those of a pass that follows one which raised."""
    net = make_net()
    model = DistributedDataParallel(net, message_size=1)
    inputs = batch(rank).double().requires_grad_()
    torch.autograd.grad(model(inputs).sum(), inputs)
    untouched = gradients(net)
    hidden = Failing.apply(net[0](inputs))
    model.module = torch.nn.Sequential(net[1], net[2])
    try:
        model(hidden).sum().backward()
    except (KeyError, RuntimeError):
        pass
    model.module = net
    net.zero_grad()
    loss_of(model, rank).backward()
    return untouched, gradients(net)


def copies(rank):
    """Return the gradients of a deep copy, of a pickled copy, and of params frozen at first."""
    results = []
    model = DistributedDataParallel(make_net())
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        loss_of(clone, rank).backward()
        results.append(gradients(clone))
    results.append(gradients(model))
    model.module[0].weight.requires_grad_(False)
    loss_of(model, rank).backward()
    model.zero_grad()
    model.module[0].weight.requires_grad_(True)
    loss_of(model, rank).backward()
    results.append(gradients(model))
    return results


def half_sums(rank):
    """Return half gradients of 40000 per rank, whose sum is too large for half, under some flags."""
    results = []
    cases = ({}, {"allreduce_always_fp32": True}, {"gradient_predivide_factor": 2.0})
    for flags in cases:
        net = torch.nn.Linear(2, 1, bias=False).half()
        wrapper = DistributedDataParallel(net, **flags)
        (wrapper.module.weight.float() * 40000.0).sum().backward()
        results.append(net.weight.grad.tolist()[0])
    return results


def reducers(rank):
    """Return gradients that a Reducer averaged, of a module and of a list; its weights; flat calls of two dtypes."""
    net = make_net(seed=rank)
    reducer = Reducer(net)
    loss_of(net, rank).backward()
    reducer.reduce()
    grads = [torch.full((2,), float(rank + 1)), torch.full((3,), float(rank), dtype=torch.float64)]
    Reducer(grads).reduce()
    sent = [torch.full((2,), float(rank)), torch.full((1, 2), float(rank), dtype=torch.float64)]
    flat_dist_call(sent, dist.broadcast, (1,))
    return net.state_dict(), gradients(net), grads, sent


def plain_cases(rank):
    """Return the outcome of each case above by name."""
    cases = (every_flag, unused, shared, accumulated, interrupted, copies, reducers)
    cases += () if half_kernels.stand_in() else (half_sums,)
    return {case.__name__: case(rank) for case in cases}
