"""What half costs on a CPU: a training step at every half level against O0, and on request against torch's own half.

Prints which units the CPU has, which half dtypes are emulated and why, then the time of a training step of each level
over the step at O0 (medians of interleaved rounds), for a small CNN, a transformer encoder and an LSTM. ``--own`` adds
one step of the CNN with torch's own float16 kernels (O3 under AMPCOMPAT_HALF_MATH=off), which can take many seconds.

    python benchmarks/cpu_half.py [--networks cnn transformer lstm] [--levels O1 O2 O3 O4 O5] [--rounds 5] [--own]
"""

import argparse
import os
import statistics
import time

import torch

import ampcompat
from ampcompat import amp
from ampcompat.engine.casting import emulated_half_arithmetic

#: CPU flags for half arithmetic, as torch and the operating system name them.
UNITS = ("avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "bf16", "fp16_arith", "sve_bf16")


class Cnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for width, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
            layers += [torch.nn.Conv2d(channels, width, 3, stride, 1, bias=False), torch.nn.BatchNorm2d(width)]
            layers += [torch.nn.ReLU()]
            channels = width
        self.body = torch.nn.Sequential(*layers)
        self.head = torch.nn.Linear(channels, 10)

    def forward(self, image):
        return self.head(self.body(image).mean((2, 3)))


class Lstm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(256, 10)

    def forward(self, series):
        return self.head(self.body(series)[0][:, -1])


def cnn():
    return Cnn(), torch.randn(32, 3, 32, 32)


def transformer():
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(8, 64, 256)


def lstm():
    return Lstm(), torch.randn(16, 32, 128)


NETWORKS = {"cnn": cnn, "transformer": transformer, "lstm": lstm}


class Subject:
    """One network at one level. Its session is open only while a round of it runs."""

    def __init__(self, name, level, setting=None):
        torch.manual_seed(0)
        self.model, self.batch = NETWORKS[name]()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.level, self.setting = level, setting

    def seconds(self, steps):
        """Return the median seconds of a step, over a few after a warm-up."""
        before = os.environ.get(emulated_half_arithmetic.VARIABLE)
        if self.setting is not None:
            os.environ[emulated_half_arithmetic.VARIABLE] = self.setting
        try:
            with ampcompat.session(self.level, verbosity=0):
                amp.initialize(self.model, self.optimizer, verbosity=0)
                self.step()
                return statistics.median(self.step() for _ in range(steps))
        finally:
            os.environ.pop(emulated_half_arithmetic.VARIABLE, None)
            if before is not None:
                os.environ[emulated_half_arithmetic.VARIABLE] = before

    def step(self):
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.model(self.batch).float().pow(2).mean()
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()
        return time.perf_counter() - start


def measure(name, levels, rounds, steps):
    """Return {level: (median milliseconds, median ratio to O0)} of interleaved rounds."""
    subjects = {level: Subject(name, level) for level in ["O0"] + levels}
    taken = {level: [] for level in subjects}
    for _ in range(rounds):
        for level, subject in subjects.items():
            taken[level].append(subject.seconds(steps))
    return {
        level: (
            statistics.median(times) * 1e3,
            statistics.median(mine / base for mine, base in zip(times, taken["O0"])),
        )
        for level, times in taken.items()
    }


def cpu_flags():
    """Return the flags of the CPU that concern half arithmetic, as Linux reports them; elsewhere as torch does."""
    try:
        with open("/proc/cpuinfo") as file:
            words = set(file.read().split())
    except OSError:
        words = {name for name, there in getattr(torch.cpu, "get_capabilities", dict)().items() if there is True}
    return sorted(word for word in words if word in UNITS or word in ("avx2", "avx512f", "amx_tile", "sve"))


def print_heading():
    print("torch {}, {} threads; CPU: {}".format(torch.__version__, torch.get_num_threads(), " ".join(cpu_flags())))
    for dtype in (torch.float16, torch.bfloat16):
        print(f"{dtype}: {emulated_half_arithmetic.describe(dtype)}")
    print("network      level     ms a step   over O0", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--levels", nargs="+", default=["O1", "O2", "O3", "O4", "O5"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="per round and level")
    parser.add_argument("--own", action="store_true", help="measure a step of the CNN in torch's own float16 too")
    stated = parser.parse_args()
    print_heading()
    for name in stated.networks:
        for level, (milliseconds, ratio) in measure(name, stated.levels, stated.rounds, stated.steps).items():
            print(f"{name:12} {level:5} {milliseconds:13.1f} {ratio:9.2f}", flush=True)
    if stated.own:
        own, emulated = Subject("cnn", "O3", "off").seconds(1), Subject("cnn", "O3", "on").seconds(1)
        print(f"CNN at O3: {emulated * 1e3:.1f} ms emulated, {own * 1e3:.1f} ms by torch's own kernels")


if __name__ == "__main__":
    main()
