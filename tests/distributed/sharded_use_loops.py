"""What else users do with sharded models at levels that cast weights. Importable by spawned processes."""

import torch
from ddp_loops import batches, make_net
from helpers import loops
from sharded_loops import half_inside, sgd, shard

import ampcompat
from ampcompat import amp
from ampcompat.errors import AmpError


def all_uses(rank):
    """Return what each function below returns, by its name."""
    outcomes = {}
    uses = (
        refusals,
        restored,
        kept_layers,
        unsharded_parts,
        one_group,
        shared_scaler,
        unreduced_step,
        fused,
        accumulated,
    )
    for use in uses:
        try:
            outcomes[use.__name__] = use(rank)
        finally:
            ampcompat.reset()
    return outcomes


def initialized(net, opt_level="O2", make_optimizer=sgd, **options):
    """Initialize a network at a level; return its optimizer."""
    return amp.initialize(net, make_optimizer(net.parameters()), opt_level=opt_level, verbosity=0, **options)[1]


def backward(net, optimizer, batch, factor=1.0):
    """Run a backward pass on the square of the outputs."""
    loops.backward(net(batch).float().pow(2).mean() * factor, optimizer)


def with_norm():
    """Return a network with batch norm and a buffer."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    net[2].register_buffer("table", torch.ones(2))
    return net


def refusals(rank):
    """Return the messages of what is refused, by name, and the dtypes of the weights afterwards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module

    split = distribute_module(make_net(), init_device_mesh("cpu", (2,)))
    other, late = half_inside(make_net()), make_net()
    optimizer = initialized(late)
    shard(late)
    said = {"late": _message(lambda: backward(late, optimizer, batches()[0]))}
    ampcompat.reset()
    said["another dtype"] = _message(lambda: initialized(other, "O5"))
    said["split by hand"] = _message(lambda: initialized(split, "O5"))
    return said, {param.dtype for net in (split, other) for param in net.parameters()}


def _message(function):
    try:
        function()
    except AmpError as error:
        return str(error)


def restored(rank):
    """Return the dtypes of a hidden output and of the last one: at O2, after it, at O5, after it."""
    net, hidden, found = shard(make_net()), [], []
    net[0].register_forward_hook(lambda module, inputs, output: hidden.append(output.dtype))
    for level in ("O2", None, "O5", None):
        if level is None:
            ampcompat.reset()
        else:
            initialized(net, level)
        found.append((net(batches()[0]).dtype, hidden.pop()))
    return found


def kept_layers(rank):
    """Return the dtypes in which each layer computes with weights that stay float32, for three ways to shard them."""
    from torch.distributed.fsdp import fully_shard

    found = {}
    for way in ("by itself", "in a list", "with others"):
        net = with_norm()
        if way == "by itself":
            fully_shard(net[1])
        elif way == "in a list":
            fully_shard([net[1], net[2]])
        fully_shard(net)
        found[way] = _message(lambda net=net, way=way: _train_kept(net, way, found)) or found[way]
        ampcompat.reset()
    return found


def _train_kept(net, way, found):
    optimizer = initialized(net, keep_fp32=[net[2]] if way == "in a list" else None)
    seen = []
    for layer in net:
        layer.register_forward_hook(lambda module, inputs, output: seen.append((module.weight.dtype, output.dtype)))
    backward(net, optimizer, batches()[0])
    found[way] = seen, {param.grad.dtype for param in net.parameters()}
    optimizer.step()


def unsharded_parts(rank):
    """Return what becomes of a layer and a buffer that are not sharded: dtypes in the model, optimizer, state dict."""
    from torch.distributed.fsdp import fully_shard

    net = with_norm()
    fully_shard(net[0])
    optimizer = initialized(net)
    backward(net, optimizer, batches()[0])
    optimizer.step()
    held = {param.dtype for param in amp.master_params(optimizer)}
    kept = {value.dtype for value in net.state_dict().values() if value.is_floating_point()}
    return net[0].weight.dtype, net[2].weight.dtype, net[2].table.dtype, held, kept


def one_group(rank):
    """Return the number of params that two steps have moved; after the first forward pass nothing is sharded."""
    from torch.distributed.fsdp import fully_shard

    net = make_net()
    fully_shard(net)
    optimizer = initialized(net)
    before = [value.full_tensor().clone() for value in net.state_dict().values()]
    for batch in batches()[:2]:
        backward(net, optimizer, batch)
        optimizer.step()
        optimizer.zero_grad()
    after = [value.full_tensor() for value in net.state_dict().values()]
    return sum(not torch.equal(*pair) for pair in zip(before, after)), len(before)


def shared_scaler(rank):
    """Return the gradients of two passes, of which the first is not reduced, and the loss scale lowered in between."""
    net, other = shard(make_net()), shard(make_net())
    optimizers = [sgd(each.parameters()) for each in (net, other)]
    _, (optimizer, its_optimizer) = amp.initialize([net, other], optimizers, opt_level="O2", verbosity=0)
    first, second = (batch[rank::2] for batch in batches()[:2])
    net.set_requires_gradient_sync(False)
    backward(net, optimizer, first)
    backward(other, its_optimizer, first, float("inf"))
    its_optimizer.step()
    net.set_requires_gradient_sync(True)
    backward(net, optimizer, second)
    scale = amp.state_dict()["loss_scaler0"]["loss_scale"]
    return scale, [param.grad.full_tensor() for param in amp.master_params(optimizer)]


def unreduced_step(rank):
    """Return the message of a step on gradients that were not reduced."""
    net = shard(make_net())
    optimizer = initialized(net)
    net.set_requires_gradient_sync(False)
    backward(net, optimizer, batches()[0])
    return _message(optimizer.step)


def fused(rank):
    """Return the skips of a fused optimizer, which skips steps by itself, the scale, and whether weights moved."""
    net = shard(make_net())
    optimizer = initialized(net, make_optimizer=lambda params: torch.optim.Adam(params, lr=0.1, fused=True))
    skips, moves = [], []
    for step, batch in enumerate(batches()):
        before = net[0].weight.full_tensor().clone()
        optimizer.zero_grad()
        backward(net, optimizer, batch[rank::2], float("inf") if step == 1 and rank == 1 else 1.0)
        optimizer.step()
        skips.append(amp.step_was_skipped(optimizer))
        moves.append(not torch.equal(before, net[0].weight.full_tensor()))
    return skips, moves, amp.state_dict()["loss_scaler0"]


def accumulated(rank):
    """Return the weights after steps that two passes share, and each pass's collectives by name."""
    net = shard(make_net())
    optimizer = initialized(net)

    def iteration(batch, is_last):
        net.set_requires_gradient_sync(is_last)
        loss = net(batch).pow(2).mean() / 2
        loops.backward(loss, optimizer)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()

    counts = [
        collectives(iteration, batch[rank::2].requires_grad_(), index % 2 == 1) for index, batch in enumerate(batches())
    ]
    return {name: value.full_tensor() for name, value in net.state_dict().items()}, counts


def collectives(function, *args):
    """Call a function; return how often it called each collective, by its name in torch."""
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as communication:
        function(*args)
    counts = communication.get_comm_counts().items()
    return {str(name).split(".")[-1]: count for name, count in counts if count}


def accumulated_by_one_process():
    """Return the weights of the same training in one process."""
    net = make_net()
    optimizer = initialized(net)
    for step in (0, 2):
        optimizer.zero_grad()
        for batch in batches()[step : step + 2]:
            backward(net, optimizer, batch, 0.5)
        optimizer.step()
    return net.state_dict()
