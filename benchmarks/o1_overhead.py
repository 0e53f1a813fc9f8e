"""What casting by function costs, against a hand-written loop with torch.autocast.

The rival's loop has a torch.amp.GradScaler in float16 (O1) and none in bfloat16 (O4), as people write it.

Prints the time of a training step and its ratio to the rival's (median of interleaved rounds), for

    mlp           4 x (Linear(8, 8) + ReLU), batch 8: only Python counts
    transformer   about 10 million params

    python benchmarks/o1_overhead.py [--levels O1 O4] [--backends native patched] [--rounds 7] [--device cpu]
    AMPCOMPAT_HALF_MATH=off python benchmarks/o1_overhead.py    both sides on torch's own half kernels, which a CPU
                                                                without half units runs slowly: only Python differs
    python benchmarks/o1_overhead.py --calls                    what casting adds to one call of a function
"""

import argparse
import statistics
import time
import timeit

import torch

import ampcompat
from ampcompat import amp
from ampcompat.engine.casting import emulated_half_arithmetic
from ampcompat.opt_levels import OPT_LEVELS


def mlp():
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers), torch.randn(8, 8)


def transformer():
    layer = torch.nn.TransformerEncoderLayer(512, 8, 1024, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 5, enable_nested_tensor=False), torch.randn(2, 32, 512)


NETWORKS = {"mlp": mlp, "transformer": transformer}


def make(name, device):
    torch.manual_seed(0)
    model, batch = NETWORKS[name]()
    model = model.to(device)
    return model, batch.to(device), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


class Rival:
    """The loop of torch's own documentation."""

    def __init__(self, name, device, dtype):
        self.model, self.batch, self.optimizer = make(name, device)
        self.autocast = lambda: torch.autocast(device, dtype=dtype)
        self.scaler = torch.amp.GradScaler(device) if dtype is torch.float16 else None

    def step(self):
        self.optimizer.zero_grad()
        with self.autocast():
            loss = self.model(self.batch).float().pow(2).mean()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
            return
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def enter(self):
        """Nothing is in force between the steps."""

    leave = enter


class Ours:
    """The same loop through amp. The session is open only while a round of it runs: casts are process-wide."""

    def __init__(self, name, device, level, backend):
        self.made = make(name, device)
        self.level, self.backend = level, backend

    def enter(self):
        self.session = ampcompat.session(self.level, backend=self.backend, verbosity=0)
        self.session.__enter__()
        self.model, self.batch, self.optimizer = self.made
        amp.initialize(self.model, self.optimizer)

    def leave(self):
        self.session.__exit__(None, None, None)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.batch).float().pow(2).mean()
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()


def clock(subject, steps):
    """Return the median seconds of a step, over a few steps after a warm-up."""
    subject.enter()
    try:
        seconds = []
        for index in range(steps + 2):
            start = time.perf_counter()
            subject.step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if index >= 2:
                seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)
    finally:
        subject.leave()


def calls(device, dtype):
    """Return {name: function of no arguments} for under casts, and for without them on inputs that are cast already."""
    weight = torch.nn.Parameter(torch.randn(8, 8, device=device))
    wide, low = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device).to(dtype)
    low_weight = weight.detach().to(dtype).requires_grad_()
    nothing_to_cast = {
        "add": lambda: wide + wide,
        "add_": lambda: wide.add_(0.0),
        "exp": lambda: torch.exp(wide),
        "cat": lambda: torch.cat([wide, wide]),
        "matmul": lambda: torch.matmul(low, low),
    }
    linear = torch.nn.functional.linear  # as it is before the casts; under them it is looked up
    under = dict(nothing_to_cast, **{"linear, cached weight": lambda: torch.nn.functional.linear(low, weight)})
    return under, dict(nothing_to_cast, **{"linear, cached weight": lambda: linear(low, low_weight)})


def quickest(function):
    """Return the seconds of a call in the quickest of some short runs: others use the machine too."""
    return min(timeit.repeat(function, number=500, repeat=10)) / 500


def print_calls(device, level, backend, rounds):
    """Print the microseconds of each call: plain, under casts, the difference."""
    under, plain = calls(device, OPT_LEVELS[level].dtypes.low)
    seconds = {name: ([], []) for name in under}
    for _ in range(rounds):
        for name in under:
            seconds[name][0].append(quickest(plain[name]))
        with ampcompat.session(level, backend=backend, verbosity=0):
            amp.initialize(torch.nn.Linear(1, 1))
            for name in under:
                under[name]()
                seconds[name][1].append(quickest(under[name]))
    for name, columns in seconds.items():
        before, after = (min(column) * 1e6 for column in columns)
        print(f"{name:22} {level:5} {backend:8} {before:8.2f} {after:8.2f} {after - before:+8.2f}")


def print_steps(name, device, level, backends, rounds):
    """Print the time of a step of one network, for each backend beside the rival."""
    steps = 200 if name == "mlp" else 5
    rival = Rival(name, device, OPT_LEVELS[level].dtypes.low)
    for backend in backends:
        ours = Ours(name, device, level, backend)
        pairs = [(clock(ours, steps), clock(rival, steps)) for _ in range(rounds)]
        mine, theirs = (statistics.median(column) * 1e6 for column in zip(*pairs))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{name:12} {level:5} {backend:8} {mine:10.0f} {theirs:11.0f} {ratio:7.2f}")


def print_heading(device, levels):
    """Print where this is measured, and where the two sides do not compute alike."""
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads")
    for level in levels:
        low = OPT_LEVELS[level].dtypes.low
        if device == "cpu" and emulated_half_arithmetic.is_wanted(low):
            print(
                f"{level}: half math is on for {low} (AMPCOMPAT_HALF_MATH=off turns it off): products are computed in "
                "float32 between rounded values, the rival's by torch's own half kernels."
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--levels", nargs="+", default=["O1", "O4"], choices=["O1", "O4"])
    parser.add_argument("--backends", nargs="+", default=["native", "patched"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--calls", action="store_true", help="measure single calls instead of training steps")
    stated = parser.parse_args()
    print_heading(stated.device, stated.levels)
    if stated.calls:
        print("call                   level backend     plain    casts     more   (us, best of the rounds)")
        for level in stated.levels:
            for backend in stated.backends:
                print_calls(stated.device, level, backend, stated.rounds)
        return
    print("network      level backend    us ours    us rival   ratio")
    for name in stated.networks:
        for level in stated.levels:
            print_steps(name, stated.device, level, stated.backends, stated.rounds)


if __name__ == "__main__":
    main()
