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

import statistics
import timeit

import bench
import torch
from networks import encoder, perceptron

import ampcompat
from ampcompat import amp
from ampcompat.engine.casting import emulated_half_arithmetic
from ampcompat.opt_levels import OPT_LEVELS

NETWORKS = {
    "mlp": lambda: (perceptron(*[8] * 5), torch.randn(8, 8)),
    "transformer": lambda: (encoder(5, 512, 8, 1024), torch.randn(2, 32, 512)),
}


def make(name, device):
    torch.manual_seed(0)
    model, batch = NETWORKS[name]()
    model = model.to(device)
    return model, batch.to(device), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def rival(name, device, dtype):
    """Return a function that does a step, as the loop of torch's own documentation does."""
    model, batch, optimizer = make(name, device)
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            loss = model(batch).float().pow(2).mean()
        if not scaler.is_enabled():
            loss.backward()
            optimizer.step()
            return
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def clock(step, steps, device):
    """Return the median seconds of a step, over a few steps after a warm-up."""
    return statistics.median([bench.seconds(step, device) for _ in range(steps + 2)][2:])


def clock_ours(made, steps, device, level, backend):
    """Return those of the same loop through amp. The session is open only meanwhile: casts are process-wide."""
    model, batch, optimizer = made

    def step():
        optimizer.zero_grad()
        bench.by_amp(optimizer, model(batch).float().pow(2).mean())

    with ampcompat.session(level, backend=backend, verbosity=0):
        amp.initialize(model, optimizer)
        return clock(step, steps, device)


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
        bench.row(name, level, backend, f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}")


def print_steps(name, device, level, backends, rounds):
    """Print the time of a step of one network, for each backend beside the rival."""
    steps = 200 if name == "mlp" else 5
    theirs = rival(name, device, OPT_LEVELS[level].dtypes.low)
    for backend in backends:
        made = make(name, device)
        subjects = {
            "ours": lambda made=made, backend=backend: clock_ours(made, steps, device, level, backend),
            "rival": lambda: clock(theirs, steps, device),
        }
        found = bench.interleaved(subjects, rounds)
        times = [f"{statistics.median(each) * 1e6:.0f}" for each in found.values()]
        bench.row(name, level, backend, *times, f"{bench.ratio(found['ours'], found['rival']):.2f}")


def main():
    stated = bench.options(
        __doc__, networks=list(NETWORKS), levels=["O1", "O4"], backends=["native", "patched"], rounds=7, device="cpu",
        calls=False, choices={"networks": NETWORKS},
    )  # fmt: skip
    print(f"torch {torch.__version__}, {stated.device}, {torch.get_num_threads()} threads")
    for level in stated.levels:
        low = OPT_LEVELS[level].dtypes.low
        if stated.device == "cpu" and emulated_half_arithmetic.is_wanted(low):
            print(f"{level}: half math is on for {low}: the rival's products are by torch's own half kernels, ours not")
    if stated.calls:
        bench.heading("call", "level", "backend", "plain, us (best of the rounds)", "casts", "more")
        for level in stated.levels:
            for backend in stated.backends:
                print_calls(stated.device, level, backend, stated.rounds)
        return
    bench.heading("network", "level", "backend", "us ours", "us rival", "ratio")
    for name in stated.networks:
        for level in stated.levels:
            print_steps(name, stated.device, level, stated.backends, stated.rounds)


if __name__ == "__main__":
    main()
