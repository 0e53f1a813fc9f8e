"""How a training step with a module of torch's database differs from what it should be."""

import contextlib
import functools

import torch
from module_runs import at_level, configurations, plain, rounded, step
from operator_results import autocast, difference

HALVES = {"O1": torch.float16, "O2": torch.float16, "O3": torch.float16, "O4": torch.bfloat16, "O5": torch.bfloat16}
#: Of static loss scaling. Some samples have gradients of 10000, which a much larger one would make infinite.
LOSS_SCALE = 2.0
#: Configurations whose gradients are not compared, with why.
DISCONTINUOUS = dict.fromkeys(
    ("nn.TransformerEncoder, relu_activation", "nn.TransformerEncoder, no_batch_dim_batch_first"),
    "rounding changes the sign of an input of a ReLU",
)


@functools.lru_cache(maxsize=None)
def references():
    """Return each configuration's step in float64, and that in float32."""
    return [(step(each, plain, torch.float64), step(each, plain)) for each in configurations()]


@functools.lru_cache(maxsize=None)
def rounded_references(low):
    """Return each configuration's step in float64 with weights and inputs that are rounded to half."""
    return [step(each, rounded(low), torch.float64) for each in configurations()]


@functools.lru_cache(maxsize=None)
def half_references(low, casts):
    """Return each configuration's step in float64 with rounded weights and inputs, and that of torch alone in half.

    Args:
        casts: torch alone is ``torch.autocast``; False means a model whose weights are half.
    """
    exact, dtype = rounded_references(low), torch.float32 if casts else low
    with autocast(low) if casts else contextlib.nullcontext():
        return list(zip(exact, [step(each, plain, dtype) for each in configurations()]))


def steps_at(level):
    """Return the step of each configuration at a level, all in one session."""
    options = {} if level == "O3" else {"loss_scale": LOSS_SCALE}
    return [step(each, at_level(level, **options)) for each in configurations()]


def differences(level, steps, half, may_fail_as_torch=False):
    """Return {(what differs, configuration): sentence} of the steps at a level.

    Args:
        half: ``half_references`` for these steps.
        may_fail_as_torch: an error is no difference if torch alone raises one in half too, as without a kernel.
    """
    found = {}
    for each, ours, (wide, narrow), (exact, torch_alone) in zip(configurations(), steps, references(), half):
        if ours.error is not None:
            if torch_alone.error is None or not may_fail_as_torch:
                found["fails", each.name] = ours.error
            continue
        if ours.warned - narrow.warned:
            found["warns", each.name] = "; ".join(sorted(ours.warned - narrow.warned))
        if level != "O3" and ours.statistics != narrow.statistics:
            found["statistics", each.name] = str(ours.statistics)
        for what in ("outputs", "gradients"):
            values = [getattr(given, what) for given in (ours, wide, exact, narrow)]
            alone = getattr(torch_alone, what) if torch_alone.error is None else [None] * len(values[0])
            sentence = _first_difference(values + [alone], torch.finfo(HALVES[level]).eps)
            if sentence and (what == "outputs" or each.name not in DISCONTINUOUS):
                found[what, each.name] = sentence
    return found


def _first_difference(values, epsilon):
    if len(set(map(len, values))) != 1:
        return "another number of tensors: {}".format(", ".join(map(str, map(len, values))))
    return next(filter(None, [difference(*each, epsilon) for each in zip(*values)]), None)
