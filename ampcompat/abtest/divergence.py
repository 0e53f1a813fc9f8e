"""How far one run's losses are from another's, and how far they are apart because of the seed alone.

With the baseline's losses B, another run's losses L, both by step, and M = the median of |B| over the steps:

    divergence   d(t) = |L(t) - B(t)| / max(|B(t)|, M)            inf where L is not finite and B is
    noise        n(t) = mean of d over all pairs of baseline runs with different seeds, and over the steps around t
    beyond       e(t) = max(0, d(t) - n(t))

The difference is relative, but to no less than the median loss of the baseline: late in a training the loss of a batch
may be 0.004 at one level and 0.008 at another, a factor of 2 without meaning.

Steps at which the baseline itself is not finite are left out: there is nothing to compare with. With several losses
(``loss_id``) a step's divergence is the largest of theirs. With repeats a level's divergence is the mean over pairs of
equal seed, so that weights and batches are the same on both sides and only the level differs.
"""

import math
from itertools import combinations
from statistics import median

#: Half of the window in which noise is averaged, as a share of the steps: the losses of two runs cross now and then.
WINDOW = 1 / 20


def between(run, baseline):
    """Return ``{step: divergence}`` of one run from another, each without its repeats."""
    found = {}
    for loss_id in sorted({number for _, number, _ in baseline.loss}):
        for step, value in _of_one_loss(run.losses(loss_id), baseline.losses(loss_id)).items():
            found[step] = max(value, found.get(step, 0.0))
    return dict(sorted(found.items()))


def of_level(run, baseline):
    """Return ``{step: divergence}`` of a level from the baseline: the mean over pairs of equal seed."""
    pairs = zip([run] + run.repeats, [baseline] + baseline.repeats)
    return _mean_by_step([between(one, other) for one, other in pairs])


def noise(baseline):
    """Return ``{step: noise}`` of a baseline with repeats; empty without repeats."""
    runs = [baseline] + baseline.repeats
    by_step = _mean_by_step([between(one, other) for one, other in combinations(runs, 2)])
    return _averaged_around(by_step)


def beyond(divergence, noise):
    """Return ``{step: how far beyond the noise}`` at the steps where both are known."""
    return {step: max(0.0, value - noise[step]) for step, value in divergence.items() if step in noise}


def scatter(baseline):
    """Return how far the baseline's loss moves from one step to the next, as a mean divergence; None where unknown.

    It estimates the noise of a single run: another order of the batches would change the loss about as much.
    """
    found = []
    for loss_id in sorted({number for _, number, _ in baseline.loss}):
        values = [value for _, value in sorted(baseline.losses(loss_id).items()) if math.isfinite(value)]
        before, after = dict(enumerate(values[:-1])), dict(enumerate(values[1:]))
        found += _of_one_loss(after, before).values()
    return mean(found)


def mean(values):
    """Return the mean of numbers, or None of none."""
    values = list(values)
    return sum(values) / len(values) if values else None


def _of_one_loss(losses, baseline):
    known = {step: value for step, value in baseline.items() if math.isfinite(value)}
    typical = median(map(abs, known.values())) if known else 0.0
    return {step: _relative(losses[step], value, typical) for step, value in known.items() if step in losses}


def _relative(value, reference, typical):
    if not math.isfinite(value):
        return math.inf
    distance, measure = abs(value - reference), max(abs(reference), typical)
    return distance / measure if measure else math.inf if distance else 0.0


def _mean_by_step(series):
    steps = sorted({step for each in series for step in each})
    return {step: mean(each[step] for each in series if step in each) for step in steps}


def _averaged_around(by_step):
    steps = list(by_step)
    reach = max(1, int(len(steps) * WINDOW))
    around = {step: steps[max(0, index - reach) : index + reach + 1] for index, step in enumerate(steps)}
    return {step: mean(by_step[each] for each in near) for step, near in around.items()}
