"""What amp costs on a sharded model at O2 and O5, next to the same training by torch alone.

    python benchmarks/sharded.py            # two gloo processes on the CPU, or a process per GPU
    python benchmarks/sharded.py --table    # the table of estimates in docs/data_parallel.md, in seconds

Per level it prints the ratio of step times (the median of pairs of steps that alternate), bytes per param and rank, and
the collectives of a step. Half arithmetic is left to torch in both. It takes about a minute.
"""

import collections
import json
import os
import statistics
import sys
import tempfile
import time
import warnings

os.environ.update(AMPCOMPAT_HALF_MATH="off", OMP_NUM_THREADS="1")

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

import ampcompat
from ampcompat import amp
from ampcompat.tools.memory.storages import sizes_in

# Of hooks: CommDebugMode's own on backward, and FSDP2's on outputs that are views, which nothing here writes to.
warnings.filterwarnings("ignore", "Full backward hook is firing|FSDP2-wrapped module")

WIDTH, LAYERS, BATCH, PAIRS = 128, 4, 16, 30
SCALE = 2.0**10


class Block(torch.nn.Module):
    """A feed-forward block."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Training:
    """A sharded network with its optimizer; ``step`` is one iteration."""

    def __init__(self, level, with_amp, device):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(*[Block() for _ in range(LAYERS)]).to(device)
        for module in list(self.net) + [self.net]:
            fully_shard(module, mp_policy=ampcompat.fsdp_policy(level))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-4)
        self.with_amp, self.scales = with_amp, level == "O2"
        if with_amp:
            amp.initialize(self.net, self.optimizer, opt_level=level, verbosity=0, init_scale=SCALE)
        self.inputs = torch.randn(BATCH, WIDTH, device=device)

    def step(self):
        """Run one iteration, by amp or by hand: as ``GradScaler`` does, over all ranks."""
        self.optimizer.zero_grad()
        loss = self.net(self.inputs).float().pow(2).mean()
        if self.with_amp:
            with amp.scale_loss(loss, self.optimizer) as scaled:
                scaled.backward()
            self.optimizer.step()
        elif not self.scales:
            loss.backward()
            self.optimizer.step()
        else:
            (loss * SCALE).backward()
            if not self.unscale():
                self.optimizer.step()

    def unscale(self):
        """Unscale the gradients; return whether one of any rank overflowed."""
        gradients = [param.grad.to_local() for param in self.net.parameters()]
        found = torch.zeros((), device=gradients[0].device)
        factor = torch.full((), 1.0 / SCALE, device=found.device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, factor)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return bool(found)

    def bytes_per_param(self):
        """Return the bytes of shards, gradients and optimizer state of this rank, per param of the model."""
        gradients = [param.grad for param in self.net.parameters()]
        held = sizes_in([list(self.net.parameters()), gradients, dict(self.optimizer.state)])
        return sum(held.values()) / sum(param.numel() for param in self.net.parameters())

    def collectives(self):
        """Return the number of calls of each collective in one step."""
        with CommDebugMode() as communication:
            self.step()
        return {str(name): count for name, count in communication.get_comm_counts().items() if count}


def seconds(training, device):
    """Return the time of one step."""
    began = time.perf_counter()
    training.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def rank_of(rank, ranks, folder):
    """Measure on one rank; rank 0 prints."""
    has_gpus = torch.cuda.is_available()
    device = torch.device("cuda", rank) if has_gpus else torch.device("cpu")
    if has_gpus:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meeting = "file://" + os.path.join(folder, "meeting")
    dist.init_process_group("nccl" if has_gpus else "gloo", init_method=meeting, rank=rank, world_size=ranks)
    for level in ("O2", "O5"):
        plain, mixed = Training(level, False, device), Training(level, True, device)
        times = collections.defaultdict(list)
        for pair in range(PAIRS + 3):
            for each in (plain, mixed) if pair % 2 else (mixed, plain):
                times[each].append(seconds(each, device))
        ratios = [one / other for one, other in zip(times[mixed][3:], times[plain][3:])]
        row = {
            "level": level,
            "ranks": ranks,
            "step time, of plain torch's": round(statistics.median(ratios), 3),
            "plain step (ms)": round(1000 * statistics.median(times[plain][3:]), 2),
            "bytes per param": [round(each.bytes_per_param(), 3) for each in (mixed, plain)],
            "collectives": [each.collectives() for each in (mixed, plain)],
        }
        if rank == 0:
            print(json.dumps(row), flush=True)
        ampcompat.reset()
    dist.destroy_process_group()


#: Billions of params: (width, layers) of a GPT with a vocabulary of 50,304.
SIZES = {1: (1792, 23), 7: (4096, 33), 70: (8192, 86)}


class Gpt(torch.nn.Module):
    """The weights of a GPT: to be made on the meta device."""

    def __init__(self, width, layers):
        super().__init__()
        sizes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        self.embedding = torch.nn.Embedding(50304, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(*[torch.nn.Linear(*each) for each in sizes]) for _ in range(layers)
        )


def print_table():
    """Print bytes per rank and bytes sent per rank and step, as rows of a table in Markdown."""
    for billions, (width, layers) in SIZES.items():
        with torch.device("meta"):
            model = Gpt(width, layers)
        for level in ("O1", "O2", "O5"):
            cells = []
            for ranks in (8, 64, 512, 4096):
                found = ampcompat.estimate(model, torch.optim.Adam, level, world_size=ranks, shard="full")
                cells.append(f"{found.formula / 1e9:,.2f} / {found.sent / 1e9:,.1f}")
            print("| {} | {} | {} |".format(billions, level, " | ".join(cells)))


def main():
    if "--table" in sys.argv:
        print_table()
        return
    ranks = torch.cuda.device_count() if torch.cuda.is_available() else 2
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_of, (ranks, folder), nprocs=ranks)


if __name__ == "__main__":
    main()
