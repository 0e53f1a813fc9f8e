"""What half costs on a CPU without half units: a training step at every half level against O0, and against torch's own.

Prints the time of a training step of each level over the step at O0 (median of interleaved rounds), for a small CNN, a
transformer encoder and an LSTM; then how many times longer the CNN takes with torch's own half kernels (the same model
at O3 under AMPCOMPAT_HALF_MATH=off). O4 and O5 are bfloat16, which is left to torch where this CPU has units for it.

    python benchmarks/cpu_half.py [--networks cnn transformer lstm] [--levels O1 O2 O3 O4 O5] [--rounds 5]
"""

import argparse
import os
import statistics
import time

import torch

import ampcompat
from ampcompat import amp
from ampcompat.parts import half_math

NATIVE = "O3, torch's own"


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
        before = os.environ.get(half_math.VARIABLE)
        if self.setting is not None:
            os.environ[half_math.VARIABLE] = self.setting
        try:
            with ampcompat.session(self.level, verbosity=0):
                amp.initialize(self.model, self.optimizer, verbosity=0)
                self.step()
                return statistics.median(self.step() for _ in range(steps))
        finally:
            os.environ.pop(half_math.VARIABLE, None)
            if before is not None:
                os.environ[half_math.VARIABLE] = before

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
    if name == "cnn" and "O3" in levels and half_math.is_wanted(torch.float16):
        subjects[NATIVE] = Subject(name, "O3", "off")
    taken = {level: [] for level in subjects}
    for _ in range(rounds):
        for level, subject in subjects.items():
            taken[level].append(subject.seconds(1 if level == NATIVE else steps))
    return {
        level: (
            statistics.median(times) * 1e3,
            statistics.median(mine / base for mine, base in zip(times, taken["O0"])),
        )
        for level, times in taken.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--levels", nargs="+", default=["O1", "O2", "O3", "O4", "O5"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    stated = parser.parse_args()
    emulated = [str(dtype) for dtype in (torch.float16, torch.bfloat16) if half_math.is_wanted(dtype)]
    print("torch {}, {} threads".format(torch.__version__, torch.get_num_threads()), end=", ")
    print("computed by half_math: {}".format(", ".join(emulated) or "none"))
    print("network      level               ms a step   over O0")
    for name in stated.networks:
        figures = measure(name, stated.levels, stated.rounds, stated.steps)
        for level, (milliseconds, ratio) in figures.items():
            print("{:12} {:17} {:11.1f} {:9.2f}".format(name, level, milliseconds, ratio), flush=True)
        if NATIVE in figures:
            gain = figures[NATIVE][0] / figures["O3"][0]
            print("{:12} O3 is {:.0f} times as fast as torch's own half kernels".format(name, gain), flush=True)


if __name__ == "__main__":
    main()
