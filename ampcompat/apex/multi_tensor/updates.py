"""The published update rules, over lists of tensors.

Owns: what Adam, SGD, LAMB, NovoGrad and Adagrad do to weights and state in one step.
Must not touch: groups, state dicts, dtypes: every list comes on one device and in the dtype to compute in.
The surprise: gradients are never changed; a step count or a learning rate may be a tensor of shape (), for steps that a
graph captures. ``skip``, everywhere, is a float32 tensor of shape () on the device of the lists, or None: where it
is 1, weights and state stay as they are, whatever the gradients hold, and the host need not know.
"""

import math

import torch

from ...parts import tensors
from . import fused_adam, lists


def correction(beta, step, wanted=True):
    """Return ``1 - beta ** step``, what an average that began at 0 still lacks; 1 where it is not wanted."""
    if not wanted or beta == 0:
        return 1.0
    if isinstance(step, torch.Tensor):
        return -torch.expm1(step * math.log(beta))  # in float32 the plain formula would lose four digits of it
    return 1.0 - beta**step


def decayed(grads, weights, decay):
    """Return gradients plus ``decay`` times the weights, as new tensors; without decay the gradients themselves."""
    return lists.add(grads, weights, alpha=decay) if decay else grads


def adam(weights, grads, means, squares, lr, betas, eps, step, bias_correction, decay, decoupled, skip=None):
    """Adam (Kingma and Ba, 2014), or AdamW (Loshchilov and Hutter, 2017) if the decay is ``decoupled``."""
    options = (eps, step, bias_correction, decay, decoupled, skip)
    if fused_adam.takes(weights, grads, means, squares, lr, step, decoupled):
        fused_adam.update(weights, grads, means, squares, lr, betas, *options)
        return
    direction = adam_direction(weights, grads, means, squares, betas, 1.0 - betas[0], *options)
    lists.subtract_(weights, direction, lr, skip)


def adam_direction(
    weights, grads, means, squares, betas, share, eps, step, bias_correction, decay, decoupled, skip=None
):
    """Update Adam's two averages; return what to subtract from the weights, before the learning rate.

    ``share`` is the weight of the new gradient in the mean.
    """
    if not decoupled:
        grads = decayed(grads, weights, decay)
    lists.blend_(means, betas[0], grads, share, skip)
    lists.accumulate_squares_(squares, betas[1], grads, 1.0 - betas[1], skip)
    roots = lists.sqrt(squares)
    lists.scale_(roots, correction(betas[1], step, bias_correction) ** -0.5)
    lists.add_(roots, eps)
    updates = lists.div(means, roots)
    lists.scale_(updates, 1.0 / correction(betas[0], step, bias_correction))
    if decoupled and decay:
        lists.add_(updates, weights, alpha=decay)
    return updates


def adam_of_2018(
    weights, grads, means, squares, lr, betas, eps, step, bias_correction, decay, eps_inside_sqrt, skip=None
):
    """Adam in the faster order of the paper's section 2: eps is added to the second moment as it is, uncorrected.

    The decay is decoupled, and multiplied by the corrected rate. ``eps_inside_sqrt``: eps is added before the root.
    """
    lists.blend_(means, betas[0], grads, 1.0 - betas[0], skip)
    lists.accumulate_squares_(squares, betas[1], grads, 1.0 - betas[1], skip)
    if eps_inside_sqrt:
        roots = lists.sqrt(lists.add(squares, eps))
    else:
        roots = lists.sqrt(squares)
        lists.add_(roots, eps)
    updates = decayed(lists.div(means, roots), weights, decay)
    corrections = [correction(beta, step, bias_correction) for beta in betas]
    lists.subtract_(weights, updates, lr * corrections[1] ** 0.5 / corrections[0], skip)


def sgd(weights, grads, buffers, lr, momentum, dampening, nesterov, decay, decays_last, is_first, skip=None):
    """SGD with momentum; ``buffers`` is None without. ``decays_last``: the decay does not enter the momentum.

    In a first step the buffers become the gradients, whatever they held; with ``skip`` they must hold 0 before it.
    """
    direction = grads if decays_last else decayed(grads, weights, decay)
    if momentum:
        if is_first and skip is None:
            tensors.copy_(buffers, direction)
        else:
            lists.blend_(buffers, momentum, direction, 1.0 if is_first else 1.0 - dampening, skip)
        direction = lists.add(direction, buffers, alpha=momentum) if nesterov else buffers
    if decays_last:
        direction = decayed(direction, weights, decay)
    # Rates that are tensors multiply what is subtracted, which here may be the buffers.
    lists.subtract_(weights, lists.mul(direction, 1.0) if isinstance(lr, torch.Tensor) else direction, lr, skip)


def clip_divisor(norm, limit):
    """Return what gradients of the global norm ``norm`` are divided by to keep to ``limit``, as a tensor of shape ().

    No limit, or 0, is none.
    """
    over = norm / limit if limit else torch.ones_like(norm)
    return torch.where(over > 1, over, torch.ones_like(over))


def trust_ratios(weights, updates):
    """Return (norm of the weight / norm of its update) of each tensor, 1 where either is 0, as one tensor."""
    return ratios(lists.norms(weights), lists.norms(updates))


def ratios(weight_norms, update_norms):
    """Return the quotients of norms, 1 where either is 0."""
    both = (weight_norms != 0) & (update_norms != 0)
    return torch.where(both, weight_norms / update_norms, torch.ones_like(weight_norms))


def lamb(weights, grads, means, squares, divisor, lr, betas, eps, step, bias_correction, decay, skip=None, **modes):
    """LAMB (You et al., 2019): Adam's direction, its length per tensor adapted to that of the weight.

    Args:
        divisor: a tensor of shape () that gradients are divided by first, see ``clip_divisor``; or None.
        modes: ``averaging`` (the new gradient's share of the mean is 1 - beta1, not 1), ``decoupled`` (AdamW's
            decay), ``nvlamb`` (adapts also where there is no weight decay).
    """
    if divisor is not None:
        grads = lists.mul(grads, 1.0)
        lists.scale_(grads, 1.0 / divisor)
    share = 1.0 - betas[0] if modes["averaging"] else 1.0
    options = (eps, step, bias_correction, decay, modes["decoupled"], skip)
    updates = adam_direction(weights, grads, means, squares, betas, share, *options)
    if decay or modes["nvlamb"]:
        lists.mul_(updates, list(trust_ratios(weights, updates).unbind()))
    lists.subtract_(weights, updates, lr, skip)


def blend_norms(averages, news, beta, order):
    """Return NovoGrad's second moments after a step: blended in the square for 2-norms, as they are for the largest."""
    if order == 2:
        return (averages * averages * beta + news * news * (1.0 - beta)).sqrt()
    return averages * beta + news * (1.0 - beta)


def novograd(
    weights, grads, means, moments, lr, betas, eps, step, bias_correction, decay, averaging, inside, skip=None
):
    """NovoGrad (Ginsburg et al., 2019), given its second moments of this step.

    Args:
        moments: one tensor of shape (n,): a (blended) norm for each tensor.
        inside: the decay goes through the mean, as the paper has it; otherwise it is decoupled.
    """
    divisors = moments * correction(betas[1], step, bias_correction) ** -0.5 + eps
    share = 1.0 - betas[0] if averaging else 1.0
    factors = list((1.0 / divisors).unbind())
    if inside:
        lists.blend_(means, betas[0], decayed(lists.mul(grads, factors), weights, decay), share, skip)
        updates = lists.mul(means, 1.0)
    else:
        lists.blend_(means, betas[0], grads, share, skip)
        updates = lists.mul(means, factors)
    lists.scale_(updates, 1.0 / correction(betas[0], step, bias_correction))
    lists.subtract_(weights, updates if inside else decayed(updates, weights, decay), lr, skip)


def adagrad(weights, grads, sums, lr, eps, decay, decoupled, skip=None):
    """Adagrad (Duchi et al., 2011); a ``decoupled`` decay does not enter the sum of squares."""
    if not decoupled:
        grads = decayed(grads, weights, decay)
    lists.accumulate_squares_(sums, 1.0, grads, 1.0, skip)
    roots = lists.sqrt(sums)
    lists.add_(roots, eps)
    updates = lists.div(grads, roots)
    lists.subtract_(weights, decayed(updates, weights, decay) if decoupled else updates, lr, skip)
