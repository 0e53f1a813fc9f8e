"""What does an audit cost? CPU time of a training run within ``ampcompat.audit()``, over that of the run alone.

    python benchmarks/audit_cost.py [--steps 50] [--rounds 3] [--only NAME ...]

Each run has its model's construction outside of the clock, and the audit's beginning, its end and its report inside.
The two take turns; times are CPU times of this process on one thread, so that other processes change them little. The
ratio is the median of the rounds'. ``command``: the same of ``ampcompat audit`` over ``python``, with a script that
trains once (this file with ``--train NAME``): CPU times of whole processes. Operations are those that torch
dispatches, of a run of their own: a count without noise. The last line has the CPU's flags for half arithmetic.
"""

import gc
import resource
import statistics
import subprocess
import sys
import time

import bench
import torch
from networks import DoubleConv, Transformer, perceptron

import ampcompat
from ampcompat.observers.calls import OperationCalls

BFLOAT16 = torch.bfloat16


def transformer():
    """Return a transformer of 4 layers of width 128 in bfloat16, its input and its optimizer."""
    model = Transformer().to(BFLOAT16)
    return model, torch.randint(0, 2000, (8, 128)), torch.optim.AdamW(model.parameters(), lr=1e-5)


def cnn(dtype=BFLOAT16):
    """Return a CNN of four convolutions, its input and its optimizer."""
    pool = torch.nn.AdaptiveAvgPool2d(1)
    layers = [DoubleConv(3, 32), torch.nn.MaxPool2d(2), DoubleConv(32, 64), pool, torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10)).to(dtype)
    return model, torch.randn(16, 3, 32, 32).to(dtype), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def small_params():
    """Return 100 linear layers of width 32, with 200 params, in bfloat16, their input and their optimizer."""
    model = perceptron(*[32] * 101).to(BFLOAT16)
    return model, torch.randn(64, 32).to(BFLOAT16), torch.optim.AdamW(model.parameters(), lr=1e-5)


#: name -> (a function that returns a model, an input and an optimizer, whether the forward pass is in autocast).
CASES = {
    "transformer, AdamW, bfloat16 weights": (transformer, False),
    "CNN, SGD, bfloat16 weights": (cnn, False),
    "CNN, SGD, float32 weights, autocast": (lambda: cnn(torch.float32), True),
    "200 small params, AdamW, bfloat16 weights": (small_params, False),
}


def main(arguments=None):
    """Print a row per case, and return 0."""
    choices = {"only": CASES, "train": CASES}
    stated = bench.options(__doc__, arguments, choices, steps=50, rounds=3, only=list(CASES), train=None)
    torch.set_num_threads(1)
    if stated.train is not None:
        seconds(stated.train, stated.steps, audited=False)
        return 0
    bench.heading("training", "step", "steps", "audit / plain", "least and most of the rounds", "command", "operations")
    for name in stated.only:
        subjects = {
            audited: lambda name=name, audited=audited: seconds(name, stated.steps, audited)
            for audited in (False, True)
        }
        subjects["script"] = lambda name=name: command_seconds(name, stated.steps)
        subjects["command"] = lambda name=name: command_seconds(name, stated.steps, "-m", "ampcompat", "audit")
        found = bench.interleaved(subjects, stated.rounds, warm_up=1)
        ratios = [audited / plain for audited, plain in zip(found[True], found[False])]
        step = f"{statistics.median(found[False]) / stated.steps * 1e3:.1f} ms"
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        plain, audited = (operations(name, stated.steps, audited) for audited in (False, True))
        ratio = f"{statistics.median(ratios):.2f}"
        command = f"{bench.ratio(found['command'], found['script']):.2f}"
        bench.row(name, step, stated.steps, ratio, spread, command, f"{audited / plain:.3f} ({audited:,} / {plain:,})")
    print("\n" + bench.machine() + ", " + " ".join(bench.cpu_flags()))
    return 0


def seconds(name, steps, audited):
    """Return the CPU time of a training run."""
    make, has_autocast = CASES[name]
    gc.collect()  # the weights of the run before, which are alike
    torch.manual_seed(0)
    model, x, optimizer = make()
    begin = time.process_time()
    if audited:
        with ampcompat.audit([]) as audit:
            train(model, x, optimizer, steps, has_autocast)
        audit.report()
    else:
        train(model, x, optimizer, steps, has_autocast)
    return time.process_time() - begin


def command_seconds(name, steps, *command):
    """Return the CPU time of the processes of a command that runs this file, which trains."""

    def total():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    begin = total()
    command = [sys.executable, *command, __file__, "--steps", str(steps), "--train", name]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return total() - begin


class Counter(OperationCalls):
    """Counts the operations."""

    count = 0

    def called(self, function, args, kwargs):
        """Call an operation."""
        self.count += 1
        return function(*args, **kwargs)


def operations(name, steps, audited):
    """Return the number of operations of a training run."""
    with Counter() as counter:
        seconds(name, steps, audited)
    return counter.count


def train(model, x, optimizer, steps, has_autocast):
    """Train with the mean square of the outputs as the loss."""
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", BFLOAT16, enabled=has_autocast):
            output = model(x)
        output.float().pow(2).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    sys.exit(main())
