"""What half costs on a CPU: a training step at every half level against O0.

Prints which units the CPU has, which half dtypes are emulated and why, then the time of a training step of each level
over the step at O0 (medians of interleaved rounds), for a small CNN, a transformer encoder and an LSTM. With
AMPCOMPAT_HALF_MATH=off, torch's own half kernels compute, which can take many seconds.

    python benchmarks/cpu_half.py [--networks cnn transformer lstm] [--levels O1 O2 O3 O4 O5] [--rounds 5] [--steps 3]
"""

import statistics

import bench
import torch
from networks import Recurrent, encoder

import ampcompat
from ampcompat import amp
from ampcompat.engine.casting import emulated_half_arithmetic


def cnn():
    """Return five convolutions with batch norm and ReLU, a mean and a linear layer."""
    layers, channels = [], 3
    for width, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        layers += [torch.nn.Conv2d(channels, width, 3, stride, 1, bias=False), torch.nn.BatchNorm2d(width)]
        layers += [torch.nn.ReLU()]
        channels = width
    end = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, 10)]
    return torch.nn.Sequential(*layers, *end)


NETWORKS = {
    "cnn": lambda: (cnn(), torch.randn(32, 3, 32, 32)),
    "transformer": lambda: (encoder(3, 256, 4, 1024), torch.randn(8, 64, 256)),
    "lstm": lambda: (Recurrent(128, 256, 10), torch.randn(16, 32, 128)),
}


def measure(name, levels, rounds, steps):
    """Return {level: (median milliseconds, median ratio to O0)} of interleaved rounds."""
    subjects = {level: subject(name, level, steps) for level in ["O0"] + levels}
    taken = bench.interleaved(subjects, rounds)
    return {level: (statistics.median(times) * 1e3, bench.ratio(times, taken["O0"])) for level, times in taken.items()}


def subject(name, level, steps):
    """Return a function that trains a network for some steps, in a session of its own, and returns their median."""
    torch.manual_seed(0)
    model, batch = NETWORKS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step():
        optimizer.zero_grad()
        bench.by_amp(optimizer, model(batch).float().pow(2).mean())

    def seconds():
        with ampcompat.session(level, verbosity=0):
            amp.initialize(model, optimizer, verbosity=0)
            step()
            return statistics.median(bench.seconds(step) for _ in range(steps))

    return seconds


def main():
    stated = bench.options(__doc__, networks=list(NETWORKS), levels=list(bench.LEVELS[1:]), rounds=5, steps=3)
    flags = " ".join(bench.cpu_flags())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; CPU: {flags}")
    for dtype in (torch.float16, torch.bfloat16):
        print(f"{dtype}: {emulated_half_arithmetic.describe(dtype)}")
    bench.heading("network", "level", "ms a step", "over O0")
    for name in stated.networks:
        for level, (milliseconds, ratio) in measure(name, stated.levels, stated.rounds, stated.steps).items():
            bench.row(name, level, f"{milliseconds:.1f}", f"{ratio:.2f}")


if __name__ == "__main__":
    main()
