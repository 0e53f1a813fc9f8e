"""What each of three ranks does in the tests of SyncBatchNorm; importable by spawned processes."""

import copy

import torch
import torch.distributed as dist
from helpers import loops

import ampcompat
from ampcompat import amp
from ampcompat.apex.parallel import (
    DistributedDataParallel,
    SyncBatchNorm,
    convert_syncbn_model,
    create_syncbn_process_group,
)

CHANNELS = 5
#: Samples per rank: uneven, one rank has none.
SIZES = {"even": (4, 4, 4), "uneven": (2, 7, 3), "one has none": (3, 0, 4)}
#: Name of a case: (shape after the batch dimension with channels first, dtype, keywords, sizes).
CASES = {
    "images": ((CHANNELS, 3, 4), "float64", {}, "even"),
    "uneven images": ((CHANNELS, 3, 4), "float64", {}, "uneven"),
    "an empty batch": ((CHANNELS, 3, 4), "float64", {}, "one has none"),
    "vectors": ((CHANNELS,), "float64", {}, "uneven"),
    "sequences": ((CHANNELS, 6), "float64", {}, "uneven"),
    "volumes": ((CHANNELS, 2, 3, 2), "float64", {}, "even"),
    "float32": ((CHANNELS, 3, 4), "float32", {}, "uneven"),
    "channels last": ((CHANNELS, 3, 4), "float64", {"channel_last": True}, "uneven"),
    "vectors, channels last": ((CHANNELS,), "float64", {"channel_last": True}, "uneven"),
    "with relu": ((CHANNELS, 3, 4), "float64", {"fuse_relu": True}, "uneven"),
    "no affine part": ((CHANNELS, 3, 4), "float64", {"affine": False}, "uneven"),
    "no running statistics": ((CHANNELS, 3, 4), "float64", {"track_running_stats": False}, "uneven"),
    "cumulative": ((CHANNELS, 3, 4), "float64", {"momentum": None}, "uneven"),
    "large mean": ((CHANNELS, 3, 4), "float32", {}, "uneven"),
}
HALF_CASES = {
    "half input": ((CHANNELS, 3, 4), "float16", {}, "uneven"),
    "bfloat16 input": ((CHANNELS, 3, 4), "bfloat16", {}, "uneven"),
}


def shares(name, step):
    """Return every rank's (input, gradient of the output, z), channels first."""
    shape, dtype, _, sizes = dict(CASES, **HALF_CASES)[name]
    generator = torch.Generator().manual_seed(100 + step)
    offset = 1000.0 if name == "large mean" else 0.5
    made = []
    for size in SIZES[sizes]:
        input, grad, z = (torch.randn((size,) + shape, generator=generator, dtype=torch.float64) for _ in range(3))
        made.append([tensor.to(getattr(torch, dtype)) for tensor in (2 * input + offset, grad, z)])
    return made


def set_up(norm):
    """Give a norm weights that are not 1 and 0, if it has any."""
    generator = torch.Generator().manual_seed(9)
    for param in norm.parameters():
        param.data.copy_(torch.randn(param.shape, generator=generator, dtype=torch.float64))
    return norm


def turned(tensor, turns):
    """Move the channels to the end if ``turns``."""
    return tensor.transpose(1, -1).contiguous() if turns else tensor


def one_case(rank, name):
    """Return two training passes' (output, input gradient), the param gradients, the buffers, an evaluation."""
    shape, dtype, keywords, _ = dict(CASES, **HALF_CASES)[name]
    norm = set_up(SyncBatchNorm(CHANNELS, **keywords))
    norm = norm.double() if dtype == "float64" else norm
    turns = keywords.get("channel_last", False) and len(shape) > 1
    passes = []
    for step in range(2):
        norm.zero_grad()
        input, grad, z = (turned(tensor, turns) for tensor in shares(name, step)[rank])
        input.requires_grad_()
        z.requires_grad_()
        output = norm(input, z) if "fuse_relu" in keywords else norm(input)
        output.backward(grad)
        passes.append((turned(output.detach(), turns), turned(input.grad, turns)))
    params = [None if param.grad is None else param.grad.clone() for param in norm.parameters()]
    evaluated = norm.eval()(input.detach()) if norm.running_mean is not None else None
    return passes, params, dict(norm.named_buffers()), None if evaluated is None else turned(evaluated, turns)


def every_case(rank, with_half):
    """Return the outcome of each case by name."""
    cases = list(CASES) + (list(HALF_CASES) if with_half else [])
    results = {name: one_case(rank, name) for name in cases}
    results["groups"] = in_groups(rank)
    results["trained"] = trained(rank, ("O0", "O1", "O2", "O3", "O4", "O5"))
    results["create"] = created(rank)
    return results


def in_groups(rank):
    """Return the output where ranks 0 and 1 share statistics and rank 2 keeps its own; of a deep copy too."""
    together, alone = dist.new_group([0, 1]), dist.new_group([2])
    norm = set_up(SyncBatchNorm(CHANNELS, process_group=alone if rank == 2 else together)).double()
    input = shares("uneven images", 0)[rank][0]
    return copy.deepcopy(norm)(input).detach(), norm(input).detach()


def created(rank):
    """Return whether 0 gives None, the size of a group of one, and the error of a size that does not divide."""
    group = create_syncbn_process_group(1)
    try:
        create_syncbn_process_group(2)
    except ValueError as error:
        return create_syncbn_process_group(0), dist.get_world_size(group=group), str(error)


def make_net():
    torch.manual_seed(4)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, CHANNELS, 3),
        torch.nn.BatchNorm2d(CHANNELS),
        torch.nn.ReLU(),
        torch.nn.Conv2d(CHANNELS, 1, 2),
    )


def train(rank, level, world_size):
    """Train a converted net on this rank's share of the images; return float32 weights and statistics."""
    net = make_net()
    net = convert_syncbn_model(net) if world_size > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    amp.initialize(net, optimizer, opt_level=level, verbosity=0, loss_scale=8.0)
    model = DistributedDataParallel(net) if world_size > 1 else net
    try:
        for step in range(3):
            images = torch.randn(6, 1, 6, 6, generator=torch.Generator().manual_seed(step))[rank::world_size]
            optimizer.zero_grad()
            loops.step((model(images).float() - 0.5).pow(2).mean(), optimizer)
        return net.state_dict()
    finally:
        ampcompat.reset()


def trained(rank, levels):
    """Return ``train`` by level."""
    return {level: train(rank, level, 3) for level in levels}
