"""What amp adds around a step, against torch's GradScaler on the same optimizer.

Prints, for models of many small params, the dispatched operations, host reads and calls of Python functions per step of

    ours      the exit of amp.scale_loss + optimizer.step()
    rival     torch.amp.GradScaler: unscale_ + step + update
    by hand   at O2: the least that float32 masters of half weights need, written for this model (``ByHand``)

and the ratios of their times (medians of interleaved rounds). Gradients are put in place by hand, so that nothing else
is measured. GradScaler has neither half gradients nor masters: what these cost is the ratio of "by hand" to it.

    python benchmarks/step_overhead.py [--params 8 200 2000] [--elements 32 256 1024] [--rounds 100] [--device cpu]
        [--levels O1 O2] [--optimizers sgd adam fused-adam]
"""

import gc
import itertools
import statistics
import sys

import bench
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ampcompat
from ampcompat import amp


class CountOperations(TorchDispatchMode):
    """Counts what reaches the dispatcher, and what reads a tensor's value to the host."""

    def __init__(self):
        super().__init__()
        self.operations = 0
        self.host_reads = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        self.host_reads += "_local_scalar_dense" in str(function)
        return function(*args, **(kwargs or {}))


def make_model(count, elements, device):
    return torch.nn.ParameterList([torch.nn.Parameter(torch.randn(elements, device=device)) for _ in range(count)])


class Ours:
    """``with amp.scale_loss(...)`` around nothing, entered before the clock starts; then ``step``."""

    def __init__(self, level, count, elements, device, make_optimizer):
        self.model = make_model(count, elements, device)
        self.optimizer = make_optimizer(self.model.parameters())
        amp.initialize(self.model, self.optimizer, opt_level=level, verbosity=0)
        self.loss = torch.ones((), device=device)

    def prepare(self):
        self.optimizer.zero_grad()
        self.context = amp.scale_loss(self.loss, self.optimizer)
        self.context.__enter__()
        for param in self.model.parameters():
            param.grad = torch.ones_like(param)

    def run(self):
        self.context.__exit__(None, None, None)
        self.optimizer.step()


class Rival:
    """``unscale_``, ``step`` and ``update`` of torch's GradScaler."""

    def __init__(self, count, elements, device, make_optimizer):
        # No ``Parameter``: beside masters, reading ``grad`` of one takes longer, and Rival is to be what it is alone.
        self.params = [param.detach().requires_grad_() for param in make_model(count, elements, device)]
        self.optimizer = make_optimizer(self.params)
        self.scaler = torch.amp.GradScaler(device)
        self.scaler.scale(torch.ones((), device=device))

    def prepare(self):
        self.optimizer.zero_grad()
        for param in self.params:
            param.grad = torch.ones_like(param)

    def run(self):
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class ByHand:
    """Masters as somebody would write them for one model: foreach operations, and buffers that stay allocated."""

    def __init__(self, count, elements, device, make_optimizer):
        self.weights = [param.detach().half().requires_grad_() for param in make_model(count, elements, device)]
        self.masters = [weight.detach().float().requires_grad_() for weight in self.weights]
        self.wide = [torch.empty_like(master) for master in self.masters]
        self.optimizer = make_optimizer(self.masters)
        self.scale, self.device = 2.0**16, device

    def prepare(self):
        self.optimizer.zero_grad()
        for weight in self.weights:
            weight.grad = torch.ones_like(weight)

    def run(self):
        found, factor = torch.zeros((), device=self.device), torch.full((), 1.0 / self.scale, device=self.device)
        with torch.no_grad():
            torch._foreach_copy_(self.wide, [weight.grad for weight in self.weights])
            torch._amp_foreach_non_finite_check_and_unscale_(self.wide, found, factor)
            for weight, master, wide in zip(self.weights, self.masters, self.wide):
                weight.grad, master.grad = None, wide
            if found.item():
                self.scale /= 2
            else:
                self.optimizer.step()
                torch._foreach_copy_(self.weights, self.masters)
            for master in self.masters:
                master.grad = None


def count(subject):
    """Return the dispatched operations, the host reads and the calls of Python functions of one step."""
    calls = []
    subject.prepare()
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    subject.run()
    sys.setprofile(None)
    subject.prepare()
    with CountOperations() as counted:
        subject.run()
    return counted.operations, counted.host_reads, calls.count("call")


def clock(subject, device):
    """Time one round; the garbage collector waits, as it does under timeit."""
    subject.prepare()
    gc.disable()
    seconds = bench.seconds(subject.run, device)
    gc.enable()
    return seconds


def compare(level, params, elements, rounds, device, make_optimizer):
    """Return the counts, the median microseconds and the ratios of a row."""
    made = params, elements, device, make_optimizer
    subjects = [Ours(level, *made), Rival(*made)] + ([ByHand(*made)] if level == "O2" else [])
    try:
        found = bench.interleaved(
            {subject: lambda subject=subject: clock(subject, device) for subject in subjects}, rounds, warm_up=5
        )
        counts = [each for pair in zip(*map(count, subjects[:2])) for each in pair]
    finally:
        ampcompat.reset()
    ours, *rivals = found.values()
    return (
        counts,
        [statistics.median(times) * 1e6 for times in found.values()],
        [bench.ratio(ours, times) for times in rivals],
    )


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, foreach=True),
    "adam": lambda params: torch.optim.Adam(params, foreach=True),
    "fused-adam": lambda params: torch.optim.Adam(params, fused=True),
}


def main():
    stated = bench.options(
        __doc__, params=[8, 200, 2000], elements=[32, 256, 1024], levels=["O1", "O2"], optimizers=["sgd"], rounds=100,
        device="cpu", choices={"optimizers": OPTIMIZERS},
    )  # fmt: skip
    capability = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", str)()
    print(f"torch {torch.__version__}, {stated.device}, {stated.rounds} rounds, {capability}")
    pairs = [name + " ours / rival" for name in ("operations", "host reads", "calls")]
    bench.heading(
        "optimizer", "params", "elements", "level", *pairs, "us: ours", "rival", "by hand", "ratio", "to hand"
    )
    for name in stated.optimizers:
        for params, elements, level in itertools.product(stated.params, stated.elements, stated.levels):
            counts, times, ratios = compare(level, params, elements, stated.rounds, stated.device, OPTIMIZERS[name])
            counted = [f"{ours} / {rival}" for ours, rival in zip(counts[::2], counts[1::2])]
            cells = [f"{each:.0f}" for each in times] + [""] * (3 - len(times)) + [f"{each:.2f}" for each in ratios]
            bench.row(name, params, elements, level, *counted, *cells)


if __name__ == "__main__":
    main()
