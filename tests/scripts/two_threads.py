"""Train two models in two threads of one session, again and again, and compare each with its serial run bit for bit.

    python tests/scripts/two_threads.py [--attempts 30] [--steps 60] [--levels O0,…,O1+O2] [--backends native,patched]

"O1+O2" is a model at O1 beside one at O2. Prints one line per level and backend, and exits with 1 where a run differed
or raised. A crash ends the process.
"""

import argparse
import sys
import threading
import traceback

import torch

import ampcompat
from ampcompat import amp, opt_levels
from ampcompat.errors import AmpValueError

LEVELS = tuple(opt_levels.OPT_LEVELS) + ("O1+O2", "O3+O4")


def make_task(seed):
    """Return (model, optimizer, inputs, classes); the two seeds differ in sizes, optimizer and data."""
    torch.manual_seed(seed)
    width = 16 + 8 * seed
    layers = [torch.nn.Linear(12, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU()]
    for _ in range(4):
        layers += [torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.ReLU()]
    model = torch.nn.Sequential(*(layers + [torch.nn.Linear(width, 5)]))
    if seed:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, torch.randn(8, 12), torch.randint(0, 5, (8,))


def train(task, loss_id, steps):
    """Train one task; return its losses and its params, as they are in the end."""
    model, optimizer, x, target = task
    losses = []
    for step in range(steps):
        loss = torch.nn.functional.cross_entropy(model(x), target)
        losses.append(loss.item())
        loss = loss * float("inf") if step == steps // 2 else loss  # an overflow, whose step is skipped
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer, loss_id=loss_id) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    return losses, [param.detach().clone() for param in amp.master_params(optimizer)]


def run(level, backend, steps, in_threads):
    """Train both tasks in one session, at once or one after the other; return both results."""
    tasks = [make_task(seed) for seed in range(2)]
    results = [None] * 2

    def work(index):
        try:
            results[index] = train(tasks[index], index, steps)
        except Exception:
            results[index] = traceback.format_exc()

    with ampcompat.session(backend=backend, verbosity=0):
        models, optimizers = [task[0] for task in tasks], [task[1] for task in tasks]
        first, _, second = level.partition("+")
        calls = [(models, optimizers, first)]
        if second:
            calls = [(models[0], optimizers[0], first), (models[1], optimizers[1], second)]
        for some_models, some_optimizers, each in calls:
            amp.initialize(some_models, some_optimizers, opt_level=each, loss_scale="dynamic", num_losses=2)
        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        if in_threads:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            work(0), work(1)
    return results


def differs(first, second):
    """Return whether two results of ``train`` differ by a bit."""
    if isinstance(first, str) or isinstance(second, str):
        return True
    return first[0] != second[0] or not all(map(torch.equal, first[1], second[1]))


def main():
    """Compare attempts with a serial run; return the number of those that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attempts", type=int, default=30)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--backends", default="native,patched")
    options = parser.parse_args()
    bad = 0
    for level in options.levels.split(","):
        for backend in options.backends.split(","):
            try:
                serial = run(level, backend, options.steps, in_threads=False)
            except AmpValueError as error:
                print(f"{level} {backend}: skipped, {error}")
                continue
            counts, errors = [0, 0], []
            for _ in range(options.attempts):
                results = run(level, backend, options.steps, in_threads=True)
                for index in range(2):
                    counts[index] += differs(serial[index], results[index])
                errors += [result for result in results + serial if isinstance(result, str)]
            bad += sum(counts)
            line = "{} {}: {} attempts of {} steps, different: {} and {}"
            print(line.format(level, backend, options.attempts, options.steps, *counts), flush=True)
            if errors:
                print(f"{len(errors)} errors, the first:\n{errors[0]}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
