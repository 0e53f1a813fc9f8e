"""Verdicts of ``ab`` on runs whose truth is known: simulated curves, and real trainings of a small network.

    python benchmarks/ab_verdicts.py [--seeds 20] [--trainings 7] [--first-seed 0]

Each row is a kind of run: how often its level was accepted, rejected, or not judged. A wrong acceptance is one of a
level that is bad, or that nothing can be said of; a wrong rejection is one of a level that is healthy, or that nothing
can be said of. The exit code is 1 with a wrong acceptance, or with more than 5 % wrong rejections.
"""

import collections
import math
import random
import sys

import bench

from ampcompat.abtest import Report, Run
from ampcompat.abtest.judging import verdict

#: The learning rate of the real trainings.
RATE = 0.2

#: What may be said of a kind without being wrong.
HEALTHY = (verdict.ACCEPTED, verdict.NOT_JUDGED)
BAD = (verdict.REJECTED, verdict.NOT_JUDGED)
UNKNOWN = (verdict.NOT_JUDGED,)
ANYTHING = (verdict.ACCEPTED, verdict.REJECTED, verdict.NOT_JUDGED)

#: kind -> what may be said of it.
TRUTHS = {
    **dict.fromkeys("""
healthy
healthy, start-up skips
healthy, one bad batch
healthy, heavy-tailed loss
healthy, three seeds
healthy, two losses (GAN)
healthy, batches of 1, start-up skips
healthy, bursts of noise
healthy, loss rises by design""".splitlines()[1:], HEALTHY),
    **dict.fromkeys("""
never learns, and one bad batch
learns, then diverges late
ends 5 % worse
ends 5 % worse, three seeds
drifts slowly
one of two losses collapses
ends half as high again, batches of 1
ends 30 % worse, bursts of noise
rises twice as far as the baseline
nan from the first step""".splitlines()[1:], BAD),
    **dict.fromkeys(("baseline itself broken", "unseeded data", "very short run"), UNKNOWN),
    "falls behind, 1.5 % so far": ANYTHING,
}  # fmt: skip

#: Kinds that are simulated only.
SIMULATED = ("batches of 1", "bursts of noise", "rises")


def main():
    """Print a row per kind and return the exit code."""
    options = bench.options(__doc__, seeds=20, trainings=7, first_seed=0)
    wrong, total, healthy, unjudged = collections.Counter(), 0, 0, 0
    bench.heading("kind", "source", "accepted", "rejected", "not judged", "wrong")
    for source, make, count in (("simulated", simulated, options.seeds), ("trained", trained, options.trainings)):
        kinds_of = [kind for kind in TRUTHS if make is simulated or not any(word in kind for word in SIMULATED)]
        for kind, allowed in ((kind, TRUTHS[kind]) for kind in kinds_of):
            kinds = collections.Counter(judged(make(kind, options.first_seed + seed)) for seed in range(count))
            found = [each for each in kinds.elements() if each not in allowed]
            wrong.update(found)
            total += count
            healthy += count if kind.startswith("healthy") else 0
            unjudged += kinds[verdict.NOT_JUDGED] if kind.startswith("healthy") else 0
            counts = [kinds[each] for each in (verdict.ACCEPTED, verdict.REJECTED, verdict.NOT_JUDGED)]
            if count:
                bench.row(kind, source, *counts, len(found))
    accepted, rejected = wrong[verdict.ACCEPTED], wrong[verdict.REJECTED]
    print(f"\n{total} reports: {accepted} wrong acceptances, {rejected} wrong rejections")
    print(f"{healthy} healthy ones: {unjudged} not judged")
    print(bench.machine())
    return 1 if accepted or rejected > 0.05 * total else 0


def judged(report):
    """Return the verdict on the level O2 of a report."""
    return verdict.judge(report)["O2"].kind


# -- simulated curves --------------------------------------------------------------------------------------------------


def simulated(kind, seed):
    """Return a report of two levels whose losses are simulated."""
    rng = random.Random(f"{kind} {seed}")
    shape = {
        "steps": 12 if kind == "very short run" else rng.choice([60, 120, 300, 1000]),
        "start": rng.uniform(0.5, 10.0),
        "floor": rng.choice([0.02, 0.1, 0.5, 2.0]),
        "rate": rng.uniform(3.0, 12.0),
        "batch": rng.uniform(0.02, 0.3),  # scatter of the batches' losses
        "seed": rng.uniform(0.003, 0.012),  # of the seeds' curves
        "rounding": rng.uniform(0.2, 1.0),  # of the levels' curves, as a share of that
    }
    seeds = 3 if "three seeds" in kind else 1
    if "batches of 1" in kind:
        shape.update(batch=rng.uniform(0.5, 1.0), own=rng.uniform(0.1, 0.3))
    if "bursts" in kind:
        shape.update(batch=rng.uniform(0.1, 0.3), own=rng.uniform(0.03, 0.1))
    report = Report(baseline="O0")
    for repeat in range(max(2, seeds)):
        report.add("O0", repeat, simulated_run(kind, shape, rng, (seed, repeat), is_baseline=True))
    for repeat in range(seeds):
        report.add("O2", repeat, simulated_run(kind, shape, rng, (seed, repeat), is_baseline=False))
    return report


def simulated_run(kind, shape, rng, data, is_baseline):
    """Return one ``Run``; equal ``data`` means equal initial weights and batches."""
    data = rng.random() if kind == "unseeded data" else data
    batches, seeds = random.Random(f"batches {data}"), random.Random(f"seed {data}")
    skips = (
        rng.randint(1, 4) if kind.endswith(("start-up skips", "as high again, batches of 1")) and not is_baseline else 0
    )
    seed_drift, own_drift, updates = Drift(seeds, shape["seed"]), Drift(rng, shape["seed"] * shape["rounding"]), 0
    first_loss = seeds.uniform(0.5, 2.0) if kind == "unseeded data" else 1.0
    burst = 0
    run, spike = Run(), rng.randrange(shape["steps"] * 7 // 10, shape["steps"])
    for step in range(shape["steps"]):
        progress = updates / shape["steps"]
        value = shape["floor"] + first_loss * shape["start"] * math.exp(-shape["rate"] * progress)
        if "rises" in kind:
            value = shape["start"] * (1 + (6 if kind.startswith("rises twice") and not is_baseline else 3) * progress)
        # Where a step's loss depends on few samples, each run has its own: rounding moves each of them.
        own = shape["own"] * rng.gauss(0, 1) * min(1.0, 5 * progress) if "own" in shape else 0.0
        burst = batches.randint(5, 20) if "bursts" in kind and batches.random() < 0.02 else max(0, burst - 1)
        value *= math.exp(own * (5 if burst else 1) + (0.5 if burst else 0.0))
        tail = abs(1 / max(1e-3, batches.random()) ** 0.7 - 1) if "heavy" in kind else 0.0
        value *= math.exp(seed_drift.next() + own_drift.next() + shape["batch"] * batches.gauss(0, 1)) * (1 + tail)
        if not is_baseline or kind == "baseline itself broken":
            value = faulty(kind, value, progress, shape, step == spike, is_baseline)
        run.loss.append((step, 0, value))
        if "losses" in kind:
            run.loss.append(
                (step, 1, 5.0 + batches.gauss(0, 0.2) + own_drift.value - 4.9 * collapsed(kind, is_baseline))
            )
        run.step_seconds.append(0.01)
        run.skipped += [step] if step < skips else []
        updates += step >= skips
    return run


class Drift:
    """A slow random change of a curve, of this standard deviation."""

    def __init__(self, rng, deviation):
        self._rng, self._deviation, self.value = rng, deviation, 0.0

    def next(self):
        """Return the value at the next step."""
        self.value = 0.97 * self.value + self._rng.gauss(0, self._deviation * math.sqrt(1 - 0.97**2))
        return self.value


def collapsed(kind, is_baseline):
    """Return whether the second of two losses has collapsed."""
    return kind == "one of two losses collapses" and not is_baseline


def faulty(kind, value, progress, shape, is_spike, is_baseline):
    """Return the loss of one step with the fault of its kind."""
    start = shape["floor"] + shape["start"]
    if "one bad batch" in kind and is_spike:
        value *= 1e4
    if kind.startswith("never learns"):
        value *= start / (shape["floor"] + shape["start"] * math.exp(-shape["rate"] * progress))
    if kind == "learns, then diverges late" and progress > 0.8:
        value *= math.exp(20 * (progress - 0.8))
    if kind.startswith("ends 5 % worse"):
        value *= 1 + 0.05 * min(1.0, 3 * progress) + 0.01
    if kind.startswith("ends half"):
        value *= 1 + 0.5 * min(1.0, 3 * progress)
    if kind.startswith("ends 30"):
        value *= 1 + 0.3 * min(1.0, 3 * progress)
    if kind == "drifts slowly":
        value *= 1 + 0.3 * progress
    if kind.startswith("falls behind"):
        value *= 1 + 0.017 * progress**2
    if kind == "nan from the first step":
        value = math.nan
    if kind == "baseline itself broken":
        value = value * math.exp(12 * progress) if progress < 0.7 or shape["batch"] > 0.15 else math.nan
    return value


# -- real trainings ----------------------------------------------------------------------------------------------------


def trained(kind, seed):
    """Return a report of real trainings at O0 and O2, the latter with the fault of its kind."""
    import ampcompat.abtest

    training = Training(kind)
    repeats = 3 if "three seeds" in kind else 1
    return ampcompat.abtest.compare(
        training, levels=["O2"], repeats=repeats, seed=1000 * seed, diagnose=False, memory=False
    )


class Training:
    """A small regression, or the two losses of an autoencoder and its critic. Called with the level."""

    def __init__(self, kind):
        self.kind = kind
        self.unseeded = random.SystemRandom()

    def __call__(self, level):
        """Train; at O2 with the fault."""
        import torch

        from ampcompat import amp

        if self.kind == "unseeded data":
            torch.manual_seed(self.unseeded.randrange(2**31))
        is_faulty = level == "O2" or self.kind == "baseline itself broken"
        models = [self._model(), self._model()] if self._has_two_losses() else [self._model()]
        optimizers = [torch.optim.SGD(model.parameters(), lr=RATE) for model in models]
        scale = 2.0**20 if self.kind.endswith("start-up skips") else 2.0**10
        models, optimizers = amp.initialize(
            models, optimizers, opt_level=level, num_losses=len(models), init_scale=scale, verbosity=0
        )
        task = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
        task *= self.unseeded.uniform(0.5, 2.0) if self.kind == "unseeded data" else 1.0
        for step in range(15 if self.kind == "very short run" else 150):
            for index, (model, optimizer) in enumerate(zip(models, optimizers)):
                optimizer.param_groups[0]["lr"] = self._learning_rate(step) if is_faulty else RATE
                loss = self._loss(model, task, step, is_faulty and index == len(models) - 1)
                optimizer.zero_grad()
                with amp.scale_loss(loss, optimizer, loss_id=index) as scaled_loss:
                    scaled_loss.backward()
                optimizer.step()

    def _has_two_losses(self):
        return "losses" in self.kind

    def _model(self):
        import torch

        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))

    def _learning_rate(self, step):
        if self.kind.startswith("never learns"):
            return 0.0
        late = self.kind == "learns, then diverges late" and step > 110
        return 60.0 if late else RATE

    def _noise(self, step, is_faulty):
        """Return the variance of the labels' noise as a multiple of its usual one; the loss cannot fall below it."""
        if is_faulty and self.kind.startswith("ends 5 % worse"):
            return 1.08  # the loss ends about 5 % higher
        growth = {"drifts slowly": 0.3 * step / 150, "falls behind, 1.5 % so far": 0.025 * (step / 150) ** 2}
        return 1 + growth.get(self.kind, 0.0) if is_faulty else 1.0

    def _loss(self, model, task, step, is_faulty):
        import torch

        inputs = torch.randn(32, 8)
        if "heavy" in self.kind:
            inputs = inputs * torch.randn(32, 1).abs().clamp(min=0.1).pow(-0.7).clamp(max=10.0)
        if "one bad batch" in self.kind and step == 97 and is_faulty:
            inputs = inputs * 30
        target = inputs @ task + torch.randn(32, 4) * math.sqrt(0.25 * self._noise(step, is_faulty))
        if "nan" in self.kind and is_faulty or (self.kind == "baseline itself broken" and step > 20):
            target = target * math.nan
        loss = (model(inputs).float() - target).pow(2).mean()
        return loss * 0.05 if is_faulty and self.kind == "one of two losses collapses" and step > 30 else loss


if __name__ == "__main__":
    sys.exit(main())
