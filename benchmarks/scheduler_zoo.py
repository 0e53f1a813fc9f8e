"""Do learning rate schedulers give at every level the rates and the training that they give without amp?

    python benchmarks/scheduler_zoo.py [--only "torch StepLR" ...] [--draw 15] [--rows FILE [--record]]

``schedulers_tried.md`` is the record, and says what a row has. Needed are the packages of ``SOURCES``.
"""

import importlib
import inspect
import sys
import warnings

import torch
import tried
from optimizer_training import STEPS, Setting, Training

import ampcompat

BOUNDS = {"O1": 0.01, "O2": 0.01, "O4": 0.05, "O5": 0.05}
SKIPPED = 2  # the step that has an overflow, where one has

#: What a scheduler is made with besides the optimizer, where it has no default for it or does nothing in few steps.
SPAN, WARMUP = {"t_initial": STEPS}, {"num_warmup_steps": 2}
WHOLE = {**WARMUP, "num_training_steps": STEPS}
ARGUMENTS = {
    "torch LambdaLR": {"lr_lambda": lambda count: 0.5**count},
    "torch MultiplicativeLR": {"lr_lambda": lambda count: 0.5},
    "torch StepLR": {"step_size": 2},
    "torch MultiStepLR": {"milestones": [2, 4]},
    "torch ExponentialLR": {"gamma": 0.5},
    "torch CosineAnnealingLR": {"T_max": STEPS},
    "torch CosineAnnealingWarmRestarts": {"T_0": 3},
    "torch CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-2},
    "torch OneCycleLR": {"max_lr": 1e-2, "total_steps": 2 * STEPS},
    "torch ReduceLROnPlateau": {"patience": 1},
    "torch SWALR": {"swa_lr": 1e-3},
    "timm CosineLRScheduler": SPAN,
    "timm PolyLRScheduler": SPAN,
    "timm TanhLRScheduler": SPAN,
    "timm WSDLRScheduler": {**SPAN, "decay_t": 2},
    "timm MultiStepLRScheduler": {"decay_t": [2, 4], "decay_rate": 0.5},
    "timm StepLRScheduler": {"decay_t": 2, "decay_rate": 0.5},
    "timm PlateauLRScheduler": {"patience_t": 1},
    "transformers constant_with_warmup": WARMUP,
    "transformers inverse_sqrt": WARMUP,
    "transformers cosine_with_min_lr": {**WHOLE, "min_lr": 1e-3},
    "transformers cosine_warmup_with_min_lr": {**WHOLE, "min_lr": 1e-3},
    "transformers warmup_stable_decay": {**WHOLE, "num_decay_steps": 2},
    "transformers reduce_lr_on_plateau": {"patience": 1},
    **{f"transformers {name}": WHOLE for name in ("linear", "cosine", "cosine_with_restarts", "polynomial")},
}


TEXT = f"""# Learning rate schedulers that were tried

`python benchmarks/scheduler_zoo.py --rows FILE --record` makes a row for each scheduler that torch, timm and
transformers export, and writes this page; `--draw 15` tries some of them again, as CI does. SGD with momentum trains a
small network for {STEPS} steps; the scheduler steps after each.

- O0: weights and learning rates are those without amp, bit for bit. O1, O2, O4, O5: the learning rates are, and the
  weights are within {BOUNDS["O1"]:.0%} in float16 and {BOUNDS["O4"]:.0%} in bfloat16 of how far training moved them.
- A skipped step: the same rates with an overflow at step {SKIPPED}, after which the weights are as they were.
- No scheduler warns of what it does not warn of without amp.
"""


def torch_schedulers():
    """Return {name: class} of torch's schedulers."""
    base = torch.optim.lr_scheduler.LRScheduler
    found = {**vars(torch.optim.lr_scheduler), "SWALR": torch.optim.swa_utils.SWALR}
    classes = {name: each for name, each in found.items() if inspect.isclass(each) and issubclass(each, base)}
    return {name: each for name, each in classes.items() if not name.endswith("LRScheduler")}


def timm_schedulers():
    """Return {name: class} of timm's schedulers."""
    found = vars(importlib.import_module("timm.scheduler"))
    return {name: each for name, each in found.items() if inspect.isclass(each)}


def transformers_schedulers():
    """Return {name: function} of the schedulers that transformers makes."""
    functions = importlib.import_module("transformers.optimization").TYPE_TO_SCHEDULER_FUNCTION
    return {kind.value: function for kind, function in functions.items()}


SOURCES = {"torch": torch_schedulers, "timm": timm_schedulers, "transformers": transformers_schedulers}


def names():
    """Return "PACKAGE SCHEDULER" for each scheduler."""
    return [f"{package} {name}" for package, listed in SOURCES.items() for name in listed()]


def scheduled(name, optimizer):
    """Make a scheduler; return a function that steps it, given how many steps there were."""
    package, kind = name.split()
    make, options = SOURCES[package]()[kind], ARGUMENTS.get(name, {})
    if kind in ("SequentialLR", "ChainedScheduler"):
        parts = [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma) for gamma in (0.5, 0.9)]
        made = make(optimizer, parts, milestones=[3]) if kind == "SequentialLR" else make(parts)
    else:
        made = make(optimizer, **options)
    if package == "timm":
        return lambda count: made.step(count, metric=1.0)
    takes_metric = next(iter(inspect.signature(made.step).parameters), None) in ("metrics", "metric")
    return lambda count: made.step(1.0) if takes_metric else made.step()


def trained(name, level=None, skipped=None):
    """Return the weights and learning rates of each step, those before the first too, and what was warned of."""
    setting = Setting(torch.optim.SGD, "with biases", "step")
    options = {"loss_scale": "dynamic", "max_loss_scale": 128.0} if skipped is not None else {}
    if level in ("O1", "O2") and not options:
        options = {"loss_scale": 128.0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training = Training(setting, level, **options)
        advance, rates, weights = scheduled(name, training.optimizer), [], [training.weights()]
        for count in range(1, STEPS + 1):
            training.step(float("inf") if count == skipped else 1.0)
            advance(count)
            weights.append(training.weights())
            rates.append([group["lr"] for group in training.optimizer.param_groups])
    ampcompat.reset()
    return weights, rates, {str(each.message) for each in caught}


def cell_of(name, level, plain, skipped=None):
    """Return what came of a scheduler at a level."""
    weights, rates, warned = trained(name, level, skipped)
    if rates != plain[1]:
        return "other rates"
    if warned - plain[2]:
        return f"warns: {min(warned - plain[2])}"
    if skipped is not None:
        return "as it was" if torch.equal(weights[skipped - 1], weights[skipped]) else "changes weights"
    far = (weights[-1] - weights[0]) - (plain[0][-1] - plain[0][0])
    far = (far.norm() / (plain[0][-1] - plain[0][0]).norm()).item()
    if level == "O0":
        return "equal" if torch.equal(weights[-1], plain[0][-1]) else f"differs by {far:.2g}"
    return "trains" if far <= BOUNDS[level] else f"{far:.2g}"


def row_of(name):
    """Return the row of a scheduler."""
    row = {"name": name, "group": name.split()[0], "cells": {}}
    try:
        plain = trained(name)
    except Exception as error:
        return {**row, "left_out": tried.first_line(error)}
    for level in ("O0", "O1", "O2", "O4", "O5"):
        row["cells"][level] = cell_of(name, level, plain)
    row["cells"]["a skipped step"] = cell_of(name, "O2", plain, SKIPPED)
    return row


if __name__ == "__main__":
    sys.exit(tried.main(__doc__.splitlines()[0], names, row_of, "schedulers_tried.md", TEXT, SOURCES))
