"""Verdicts of ``ab`` on scripts without Apex whose truth is planted: does it accept a level that is bad for them?

    python benchmarks/forced_truths.py [--seeds 3] [--first-seed 0]

Each run is a small training in plain float32, compared with itself at a forced level, as ``python -m ampcompat ab``
does it, with two seeds of the script unchanged. A row is a kind of training at a level: what was planted, and how often
the level was accepted, rejected or not judged. The exit code is 1 with a wrong acceptance, or with more than 5 % wrong
rejections of healthy trainings. ``--seeds 10`` makes 210 reports.
"""

import argparse
import collections
import functools
import sys

import ab_machine
import torch
from torch import nn

from ampcompat.abtest import Report
from ampcompat.abtest.judging import verdict
from ampcompat.abtest.recording import forced_run
from ampcompat.abtest.recording.recorder import Recorder
from ampcompat.abtest.running import seeding
from ampcompat.tools.forced_levels.forced_level import forced

HEALTHY = (verdict.ACCEPTED, verdict.NOT_JUDGED)
BAD = (verdict.REJECTED, verdict.NOT_JUDGED)
STEPS = 120

#: kind -> level -> what may be said of it.
TRUTHS = collections.OrderedDict(
    [
        ("healthy regression", dict.fromkeys(("O1", "O2", "O4", "O5"), HEALTHY)),
        ("healthy, clipped, accumulated", dict.fromkeys(("O1", "O2", "O4", "O5"), HEALTHY)),
        ("a layer whose activations overflow float16", {"O1": BAD, "O2": BAD, "O4": HEALTHY, "O5": HEALTHY}),
        ("a loss that needs float32", dict.fromkeys(("O1", "O2", "O4", "O5"), BAD)),
        ("updates too small for half weights", {"O2": HEALTHY, "O3": BAD, "O5": HEALTHY}),
        ("gradients too small for float16", {"O2": HEALTHY, "O3": BAD}),
    ]
)


class Scaled(nn.Module):
    """A linear model whose weights are 5 % too large, which small updates mend."""

    def __init__(self, task):
        super().__init__()
        self.layer = nn.Linear(8, 4, bias=False)
        self.layer.weight.data.copy_(1.05 * task.t())

    def forward(self, inputs):
        """Return the prediction; inputs are (n, 8)."""
        return self.layer(inputs)


class Model(nn.Module):
    """A regression of 4 values; with a fault it computes what its kind says."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.kind = kind

    def forward(self, inputs):
        """Return the prediction; inputs are (n, 8)."""
        hidden = self.first(inputs).tanh()
        if "activations" in self.kind:
            hidden = hidden * 3e5 / 3e5  # inf in float16, exact otherwise
        outputs = self.second(hidden)
        if "needs float32" in self.kind:
            outputs = outputs + 3000.0 - 3000.0  # steps of 2 in float16, of 16 in bfloat16
        return outputs


def train(kind):
    """Train as a script would that knows neither Apex nor ``torch.amp``."""
    task = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)).sign()
    model, rate, scale, noise = Model(kind), 0.2, 1.0, 0.5
    if "updates" in kind:
        model, rate, noise = Scaled(task), 6e-3, 0.01  # a step changes a weight by 0.015 %
    if "gradients" in kind:
        scale = 1e-7
    optimizer = torch.optim.SGD(model.parameters(), lr=rate / scale)
    passes = 2 if "accumulated" in kind else 1
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            inputs = torch.randn(32, 8)
            target = inputs @ task + torch.randn(32, 4) * noise
            loss = (model(inputs) - target).pow(2).mean()
            (loss * scale / passes).backward()
        if "clipped" in kind:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def reported(kind, level, seed):
    """Return the report of one kind of training at a level, with two seeds of the script unchanged."""
    report = Report(baseline="unchanged")
    for name, repeat in (("unchanged", 0), ("unchanged", 1), (level, 0)):
        recorder, own = Recorder(None), None if name == "unchanged" else level
        options = forced_run.RunOptions(diagnose=False, memory=False, verbosity=0, losses_by_line=True)
        report.add(name, repeat, recorder.run)
        with seeding.restored():
            seeding.seed_all(1000 * seed, repeat)
            with forced_run.recorded_at(own, recorder, options), forced(own):
                recorder.record(forced_run.run_to_end(recorder, functools.partial(train, kind), ()))
    return report


def main():
    """Print a row per kind and level, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="reports per kind and level")
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    wrong, total, healthy = collections.Counter(), 0, 0
    print("| planted | level | accepted | rejected | not judged | wrong |\n|---|---|---|---|---|---|")
    for kind, levels in TRUTHS.items():
        for level, allowed in levels.items():
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            kinds = collections.Counter(verdict.judge(reported(kind, level, each))[level].kind for each in seeds)
            found = [each for each in kinds.elements() if each not in allowed]
            wrong.update(found)
            total, healthy = total + options.seeds, healthy + options.seeds * (allowed is HEALTHY)
            counts = [kinds[each] for each in (verdict.ACCEPTED, verdict.REJECTED, verdict.NOT_JUDGED)]
            print("| {} | {} | {} | {} | {} | {} |".format(kind, level, *(counts + [len(found)])), flush=True)
    accepted, rejected = wrong[verdict.ACCEPTED], wrong[verdict.REJECTED]
    print(f"\n{total} reports: {accepted} wrong acceptances, {rejected} wrong rejections of {healthy} healthy ones")
    print(ab_machine.describe())
    return 1 if accepted or rejected > 0.05 * healthy else 0


if __name__ == "__main__":
    sys.exit(main())
