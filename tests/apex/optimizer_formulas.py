"""The published update rules, one tensor at a time in float64: the reference for the optimizers.

One function per optimizer, ``(weight, gradient, state, step, divisor, options) -> new weight``. The functions share
no code with each other or with ampcompat.
"""

import math

import torch


def adam(weight, gradient, state, step, divisor, options):
    beta1, beta2 = options["betas"]
    decay, is_adamw = options["weight_decay"], options.get("adam_w_mode", True)
    if not is_adamw:
        gradient = gradient + decay * weight
    state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * gradient
    state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * gradient**2
    mean, square = state["m"], state["v"]
    if options["bias_correction"]:
        mean, square = mean / (1 - beta1**step), square / (1 - beta2**step)
    update = mean / (square.sqrt() + options["eps"])
    if is_adamw:
        update = update + decay * weight
    return weight - options["lr"] * update


def sgd(weight, gradient, state, step, divisor, options):
    decay, last = options["weight_decay"], options.get("wd_after_momentum", False)
    direction = gradient if last else gradient + decay * weight
    if options["momentum"]:
        if "b" in state:
            state["b"] = options["momentum"] * state["b"] + (1 - options["dampening"]) * direction
        else:
            state["b"] = direction
        direction = direction + options["momentum"] * state["b"] if options["nesterov"] else state["b"]
    if last:
        direction = direction + decay * weight
    return weight - options["lr"] * direction


def lamb(weight, gradient, state, step, divisor, options):
    beta1, beta2 = options["betas"]
    decay, is_adamw = options["weight_decay"], options.get("adam_w_mode", True)
    gradient = gradient / divisor
    if not is_adamw:
        gradient = gradient + decay * weight
    state["m"] = beta1 * state.get("m", 0.0) + ((1 - beta1) if options["grad_averaging"] else 1.0) * gradient
    state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * gradient**2
    mean, square = state["m"], state["v"]
    if options["bias_correction"]:
        mean, square = mean / (1 - beta1**step), square / (1 - beta2**step)
    update = mean / (square.sqrt() + options["eps"])
    if is_adamw:
        update = update + decay * weight
    ratio = 1.0
    if decay != 0 or options.get("use_nvlamb"):
        lengths = float(weight.norm()), float(update.norm())
        if lengths[0] != 0 and lengths[1] != 0:
            ratio = lengths[0] / lengths[1]
    return weight - options["lr"] * ratio * update


def lamb_divisor(gradients, options):
    """Return what clips gradients by their global norm."""
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    limit = options.get("max_grad_norm")
    return norm / limit if limit and norm > limit else 1.0


def novograd(weight, gradient, state, step, divisor, options):
    beta1, beta2 = options["betas"]
    is_max = options["norm_type"] == 0
    norm = gradient.abs().max() if is_max else (gradient**2).sum().sqrt()
    old = state.get("n", torch.zeros((), dtype=torch.float64) if options["init_zero"] else norm)
    state["n"] = beta2 * old + (1 - beta2) * norm if is_max else (beta2 * old**2 + (1 - beta2) * norm**2).sqrt()
    correction1 = 1 - beta1**step if options["bias_correction"] else 1.0
    correction2 = math.sqrt(1 - beta2**step) if options["bias_correction"] else 1.0
    share = 1 - beta1 if options["grad_averaging"] else 1.0
    divided_by = state["n"] / correction2 + options["eps"]
    if options.get("reg_inside_moment"):
        state["m"] = beta1 * state.get("m", 0.0) + share * (gradient / divided_by + options["weight_decay"] * weight)
        update = state["m"] / correction1
    else:
        state["m"] = beta1 * state.get("m", 0.0) + share * gradient
        update = state["m"] / correction1 / divided_by + options["weight_decay"] * weight
    return weight - options["lr"] * update


def adagrad(weight, gradient, state, step, divisor, options):
    decay, decoupled = options["weight_decay"], options.get("adagrad_w_mode", False)
    if not decoupled:
        gradient = gradient + decay * weight
    state["s"] = state.get("s", 0.0) + gradient**2
    update = gradient / (state["s"].sqrt() + options["eps"])
    if decoupled:
        update = update + decay * weight
    return weight - options["lr"] * update
