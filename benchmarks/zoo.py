"""Do public architectures train at every level as in float32? A row for each that a package registers.

    python benchmarks/zoo.py [--only "timm " "torchvision resnet18" ...] [--draw 15] [--rows FILE [--record]]

``models_tried.md`` is the record, and says what a row has. Needed are the packages of ``zoo_items.SOURCES``.
"""

import copy
import math
import sys
import warnings

import bench
import torch
import tried
import zoo_items
from tried import attempt

from ampcompat import amp
from ampcompat.launch.forced_levels.forced_level import forced
from ampcompat.opt_levels import OPT_LEVELS

BOUNDS = {"O1": 0.02, "O2": 0.02, "O4": 0.1, "O5": 0.1}
STEPS = 3
#: What is tried: the level, and how it comes about.
WAYS = {level: (level, "initialize") for level in ("O0", "O1", "O2", "O4", "O5")}
WAYS.update({f"run {level}": (level, "run") for level in ("O1", "O2", "O4", "O5")})


TEXT = f"""# Models that were tried

`python benchmarks/zoo.py --rows FILE --record` makes a row for each architecture that a package registers, and writes
this page; `--draw 15` tries some of them again, as CI does. torchvision: every builder; timm: the smallest model of
each family; transformers: every type of configuration, made small; diffusers, segmentation-models-pytorch and
torch-geometric: every class. Weights are random and inputs small; models with more than 45 million params are left out.
Each trains {STEPS} steps of SGD, at O1 and O2 with a loss scale of 128. The losses are compared with those without amp.

- O0: equal bit for bit. O1, O2, O4, O5: within {BOUNDS["O1"]:.0%} in float16 and {BOUNDS["O4"]:.0%} in bfloat16.
  *run*: the same for a loop without Apex under `run --opt-level`, with a `GradScaler` at O1 and O2.
- *As by hand*: further, but not 1.5 times as far as the same level in plain torch, under `torch.autocast` or with half
  weights and float32 batch norms; or plain torch fails there.
- *Trains with 2 of 3 seeds*: with the weights of one seed it deviates, with those of two others it does not. Losses of
  random networks leave those of float32 by chance: batch norms of two samples, losses that grow. RecurrentGemma has a
  buffer in bfloat16, which `initialize` refuses.
- Time: a step at O1 took 1.4 times as long as in float32 with torchvision's squeezenet1_1 and timm's test_resnet, the
  two that once took 4 to 6 times as long; with `torch.autocast` to float16 it takes 5 and 7 times as long.

Of diffusers, most classes need inputs that this script does not make. Some families of timm and torchvision's larger
builders of the same architectures are still to be tried (`--only timm torchvision`).
"""


def tensors_of(values):
    """Return the floating-point tensors of nested outputs that a gradient can be taken of."""
    if isinstance(values, torch.Tensor):
        return [values] if values.requires_grad and values.is_floating_point() else []
    if isinstance(values, dict):
        values = list(values.values())
    elif hasattr(values, "__dataclass_fields__"):
        values = list(vars(values).values())
    return [each for value in values for each in tensors_of(value)] if isinstance(values, (list, tuple)) else []


def loss_of(outputs):
    """Return a loss of all outputs, in float32: their distance to values drawn at random."""
    generator = torch.Generator().manual_seed(0)
    found = tensors_of(outputs)
    return sum((each.float() - torch.randn(each.shape, generator=generator)).pow(2).mean() for each in found)


def cast(values, dtype):
    """Return nested inputs with floating-point tensors in a dtype."""
    if isinstance(values, torch.Tensor):
        return values.to(dtype) if values.is_floating_point() else values
    if isinstance(values, dict):
        return {key: cast(value, dtype) for key, value in values.items()}
    return type(values)(cast(value, dtype) for value in values) if isinstance(values, (list, tuple)) else values


def outputs_by_hand(model, level, args, kwargs):
    """Return a model's outputs under autocast, or with half weights and float32 batch norms, without amp."""
    dtype = OPT_LEVELS[level].dtypes.low
    if level in ("O1", "O4"):
        with torch.autocast("cpu", dtype):
            return model(*args, **kwargs)
    kept = [each for each in model.modules() if isinstance(each, torch.nn.modules.batchnorm._BatchNorm)]
    kept = {id(tensor) for each in kept for tensor in [*each.parameters(), *each.buffers()]}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    half = {name: each.to(dtype) for name, each in tensors if each.is_floating_point() and id(each) not in kept}
    return torch.func.functional_call(model, half, *cast((args, kwargs), dtype))


def losses_of(model, inputs, level=None, way="initialize"):
    """Return the losses of three steps.

    Args:
        way: "initialize" trains by ``amp.initialize``, "run" as a script without Apex under ``run --opt-level``, "by
            hand" with what plain torch has for the level.
    """
    with forced(level if way == "run" else None):
        return trained(model, inputs, level, way)


def trained(model, inputs, level, way):
    """Train; see ``losses_of``. In float16, losses are multiplied by 128."""
    model, (args, kwargs) = copy.deepcopy(model), copy.deepcopy(inputs)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-3, momentum=0.9)
    is_scaled, has_amp = level in ("O1", "O2"), level and way == "initialize"
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, enabled=is_scaled and not has_amp)
    if has_amp:
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, **{"loss_scale": 128.0} if is_scaled else {})
    losses = []
    for step in range(STEPS):
        torch.default_generator.manual_seed(step)
        optimizer.zero_grad()
        loss = loss_of(outputs_by_hand(model, level, args, kwargs) if way == "by hand" else model(*args, **kwargs))
        if has_amp:
            bench.by_amp(optimizer, loss)
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    return losses


def difference(losses, plain):
    """Return how far losses are from the plain ones, or why there are none."""
    if isinstance(losses, str):
        return losses
    return max(abs(one - other) / max(abs(other), 1e-3) for one, other in zip(losses, plain))


def cell_of(model, inputs, plain, level, way):
    """Return what came of a level."""
    far = difference(attempt(losses_of, model, inputs, level, way), plain)
    if level == "O0":
        if isinstance(far, float) and far != 0 and losses_of(model, inputs) != plain:
            return "same without amp: no two runs are equal"
        return far if isinstance(far, str) else "equal" if far == 0 else f"differs by {far:.2g}"
    if isinstance(far, float) and far <= BOUNDS[level]:
        return "trains"
    by_hand = difference(attempt(losses_of, model, inputs, level, "by hand"), plain)
    near = isinstance(by_hand, str) or not math.isfinite(by_hand) or (isinstance(far, float) and far <= 1.5 * by_hand)
    one, other = [f"{each:.2g}" if isinstance(each, float) else each for each in (far, by_hand)]
    return f"{'as by hand: ' if near else ''}{one}, by hand {other}"


def first_inputs(model, candidates):
    """Return the first inputs with which a model trains in plain torch, and its losses."""
    failure = ValueError("no inputs for its forward method")
    for inputs in candidates:
        try:
            losses = losses_of(model, inputs)
        except Exception as error:
            failure = error
            continue
        if all(map(math.isfinite, losses)):
            return inputs, losses
        failure = ValueError("its losses are not finite")
    raise failure


def made(name, seed):
    """Return an architecture with weights drawn by a seed, its inputs, and its losses without amp."""
    model, candidates = zoo_items.built(name, seed)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
    inputs, plain = first_inputs(model, candidates)
    return model, inputs, plain


def with_other_seeds(name, what, cell):
    """Return a cell that deviates, and of how many more networks it does not."""
    cells = [cell_of(*made(name, seed), *WAYS[what]) for seed in (1, 2)]
    good = sum(each.startswith(tried.GOOD) for each in cells)
    return f"trains with 2 of 3 seeds: {cell}" if good == 2 else f"{cell}; with {good} of 2 other seeds it does not"


def row_of(name):
    """Return the row of an architecture."""
    warnings.simplefilter("ignore")
    row = {"name": name, "group": name.split()[0], "cells": {}}
    try:
        training = made(name, 0)
    except Exception as error:
        return {**row, "left_out": tried.first_line(error)}
    for what, (level, way) in WAYS.items():
        row["cells"][what] = cell_of(*training, level, way)
    for what, cell in tried.bad_cells(row).items():
        row["cells"][what] = with_other_seeds(name, what, cell)
    return row


if __name__ == "__main__":
    packages = ["torch", *zoo_items.SOURCES]
    sys.exit(tried.main(__doc__.splitlines()[0], zoo_items.names, row_of, "models_tried.md", TEXT, packages))
