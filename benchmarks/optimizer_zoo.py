"""Do the optimizers that others wrote train at every level as without amp? A row for each class that a package exports.

    python benchmarks/optimizer_zoo.py [--only "torch Adam" ...] [--draw 15] [--rows FILE [--record]]

``optimizers_tried.md`` is the record, and says what a row has. Needed are the packages of ``PACKAGES``.
"""

import copy
import functools
import importlib
import inspect
import itertools
import sys
import warnings

import torch
import tried
from optimizer_training import STEPS, Setting, Training
from tried import attempt

import ampcompat
from ampcompat import amp

#: The module that each distribution exports its optimizers from.
PACKAGES = {
    "torch": "torch.optim",
    "timm": "timm.optim",
    "pytorch-optimizer": "pytorch_optimizer",
    "torch-optimizer": "torch_optimizer",
    "schedulefree": "schedulefree",
    "torch-optimi": "optimi",
    "prodigyopt": "prodigyopt",
    "dadaptation": "dadaptation",
    "torchao": "torchao.optim",
    "bitsandbytes": "bitsandbytes.optim",
    "heavyball": "heavyball",
    "lion-pytorch": "lion_pytorch",
    "adam-atan2-pytorch": "adam_atan2_pytorch",
    "adabelief-pytorch": "adabelief_pytorch",
    "ranger-adabelief": "ranger_adabelief",
    "adamp": "adamp",
    "madgrad": "madgrad",
    "came-pytorch": "came_pytorch",
    "dog-optimizer": "dog",
    "prodigy-plus-schedule-free": "prodigyplus",
    "adan-pytorch": "adan_pytorch",
    "kron-torch": "kron_torch",
    "adv-optm": "adv_optm",
    "nadir": "nadir",
    "grokadamw": "grokadamw",
    "flashoptim": "flashoptim",
    "parameterfree": "parameterfree",
}
BOUNDS = {"O1": 0.01, "O2": 0.01, "O4": 0.05, "O5": 0.05}
SCENARIOS = ("frozen", "accumulation", "group added", "scheduler", "EMA", "evaluation", "wrapped after initialize")


TEXT = f"""# Optimizers that were tried

`python benchmarks/optimizer_zoo.py --rows FILE --record` makes a row for each optimizer class that a package exports,
and writes this page; `--draw 15` tries some of them again, as CI does. Each class is constructed with its defaults and
trains a small network of linear layers for {STEPS} steps. The weights are compared with those without amp, as a part of
how far that training moved them.

- O0: equal bit for bit. O1, O2, O4, O5: within {BOUNDS["O1"]:.0%} in float16 and {BOUNDS["O4"]:.0%} in bfloat16. *As by
  hand*: further, but not 1.5 times as far as the same level in plain torch, under `torch.autocast` or with half copies
  of float32 weights. Such optimizers use the sign of a gradient, divide by small ones or compute in half themselves.
- A skipped step: after an injected overflow, weights and state are as they were bit for bit, at O1, O2, O5 and O5 with
  remainders.
- Resume: from a checkpoint, training goes on bit for bit at O0, O1, O2 and O5, or does not without amp either.
- Remainders: `store_param_remainders=True` gives the weights of O5 bit for bit, or is refused before anything changes.
- The others are compared at O0, O2 and O5 as above: a frozen param, accumulated gradients, a group added after
  `initialize`, a learning rate scheduler, an average of the weights (EMA), the evaluation mode of optimizers that have
  one, and optimizers that wrap another one after `initialize` got that. At O2 a group that is added later begins from
  weights that were rounded to half, which moves a few optimizers further than by hand.

AdaHessian and SophiaH differentiate the gradients, which O2 and O5 do not allow: those of the masters have no graph.
What they raise there is torch's own error, in `step`.
"""


def names():
    """Return "PACKAGE CLASS" for each optimizer class that a package exports; once for one that two export."""
    found = {}
    for distribution, module in PACKAGES.items():
        for name, cls in sorted(vars(importlib.import_module(module)).items()):
            if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer:
                found.setdefault(cls, f"{distribution} {name}")
    return list(found.values())


def class_of(name):
    """Return the class of a name."""
    distribution, name = name.split()
    return getattr(importlib.import_module(PACKAGES[distribution]), name)


def setting_of(cls):
    """Return the first way to use a class that trains in plain torch; or raise what the last of them raised."""
    loops = ["two calls"] if hasattr(cls, "first_step") else ["step", "closure", "create_graph"]
    failure = None
    for network, loop in itertools.product(("with biases", "without biases", "use_muon", "sparse"), loops):
        try:
            setting = Setting(cls, network, loop)
            start, end = Training(setting).weights(), Training(setting).run()
        except Exception as error:
            failure = failure or error
            continue
        if torch.isfinite(end).all() and not torch.equal(start, end):
            return setting
        failure = failure or ValueError("it does not move the weights, or to what is not finite")
    raise failure


@functools.lru_cache(maxsize=None)
def plain_weights(setting, scenario=None):
    """Return the weights after a training without amp, and how it moved them."""
    training = Training(setting, scenario=scenario)
    start = training.weights()
    end = training.run()
    return end, end - start


@functools.lru_cache(maxsize=None)
def distance(setting, level, scenario=None, by_hand=False):
    """Return how far the weights of a training at a level move from those without amp; 0 only if they are equal."""
    plain, moved = plain_weights(setting, scenario)
    options = {"loss_scale": 128.0} if level in ("O1", "O2") else {}
    training = Training(setting, level, scenario, by_hand, **options)
    start = training.weights()
    weights = training.run()
    ampcompat.reset()
    return 0.0 if torch.equal(weights, plain) else ((weights - start - moved).norm() / moved.norm()).item()


def trained(setting, level, scenario=None):
    """Return whether a training at a level is as one without amp: no further from it than the level by hand is."""
    far = distance(setting, level, scenario)
    if level == "O0":
        return "equal" if far == 0 else f"differs by {far:.2g}"
    if far <= BOUNDS[level]:
        return "trains"
    by_hand = attempt(distance, setting, level, scenario, by_hand=True)
    near = isinstance(by_hand, float) and not far > 1.5 * by_hand
    shown = f"{by_hand:.2g}" if isinstance(by_hand, float) else by_hand
    return f"{'as by hand: ' if near else ''}{far:.2g}, by hand {shown}"


def same(one, other):
    """Return whether nested values are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or one != one


def copied(state):
    """Return a copy of nested values; quantized tensors, which may not be cloned, become plain ones."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone() if type(state) in (torch.Tensor, torch.nn.Parameter) else state.dequantize()
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [copied(value) for value in state]
    return copied(vars(state)) if hasattr(state, "__dict__") and not callable(state) else state


def state_of(optimizer):
    """Return a copy of an optimizer's state, and of its groups if it can say so."""
    try:
        return copied(optimizer.state_dict())
    except AttributeError:  # torch_optimizer's Lookahead does not call Optimizer.__init__
        return copied(optimizer.state)


def skipped(setting, level, **options):
    """Return whether a step with an overflow, amid others, leaves the weights and the state as they were."""
    training = Training(setting, level, loss_scale="dynamic", max_loss_scale=128.0, **options)
    training.run(3)
    before = training.weights(), state_of(training.optimizer)
    training.step(factor=float("inf"))
    after = training.weights(), state_of(training.optimizer)
    changed = [what for what, one, other in zip(("weights", "state"), before, after) if not same(one, other)]
    if changed:
        return "changes " + " and ".join(changed)
    return "as it was" if torch.isfinite(training.run(2)).all() else "not finite afterwards"


def resumed(setting, level=None, **options):
    """Return whether training goes on from a checkpoint as if it had not been interrupted."""
    whole = Training(setting, level, **options).run()
    first = Training(setting, level, **options)
    first.run(3)
    saved = copy.deepcopy([first.network.state_dict(), first.optimizer.state_dict(), amp.state_dict()])
    ampcompat.reset()
    second = Training(setting, level, **options)
    second.network.load_state_dict(saved[0])
    second.optimizer.load_state_dict(saved[1])
    if level:
        amp.load_state_dict(saved[2])
    second.count = first.count
    return "equal" if torch.equal(second.run(3), whole) else "not equal"


def first_bad(results):
    """Return the first result of some levels that is not good, with its level; or the last."""
    for level, result in results:
        if not result.startswith(tried.GOOD):
            return f"{level}: {result}"
    return result


def with_remainders(setting):
    """Return whether the weights are bit for bit those of O5 with masters."""
    weights = Training(setting, "O5", store_param_remainders=True).run()
    ampcompat.reset()
    return "equal" if torch.equal(weights, Training(setting, "O5").run()) else "not equal"


def row_of(name):
    """Return the row of an optimizer."""
    warnings.simplefilter("ignore")
    row = {"name": name, "group": name.split()[0], "cells": {}}
    try:
        setting = setting_of(class_of(name))
    except Exception as error:
        return {**row, "left_out": tried.first_line(error)}
    cells = row["cells"]
    for level in ("O0", "O1", "O2", "O4", "O5"):
        cells[level] = attempt(trained, setting, level)
    cells["remainders"] = attempt(with_remainders, setting)
    skips = [(level, attempt(skipped, setting, level)) for level in ("O1", "O2", "O5")]
    if cells["remainders"] == "equal":
        skips.append(("O5 with remainders", attempt(skipped, setting, "O5", store_param_remainders=True)))
    cells["a skipped step"] = first_bad(skips)
    cells["resume"] = "same without amp"
    if attempt(resumed, setting) == "equal":
        cells["resume"] = first_bad([(level, attempt(resumed, setting, level)) for level in ("O0", "O1", "O2", "O5")])
    for scenario in SCENARIOS[: 7 if setting.wraps else 6 if hasattr(setting.cls, "eval") else 5]:
        if not isinstance(attempt(plain_weights, setting, scenario), str):
            levels = [(level, attempt(trained, setting, level, scenario)) for level in ("O0", "O2", "O5")]
            cells[scenario] = first_bad(levels)
    return row


if __name__ == "__main__":
    sys.exit(tried.main(__doc__.splitlines()[0], names, row_of, "optimizers_tried.md", TEXT, PACKAGES))
