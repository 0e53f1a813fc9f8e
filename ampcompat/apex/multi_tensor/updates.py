"""The published update rules of Adam, SGD, LAMB, NovoGrad and Adagrad, over lists of tensors.

All tensors of a list have one device and the dtype to compute in. Gradients are never modified. A step count or a
learning rate may be a tensor of shape (), for steps that are captured in a CUDA graph. ``skip`` is a float32 tensor
of shape () on the device of the lists, or None. Where it is 1, weights and state stay unchanged, whatever the
gradients hold, and the host does not read it.
"""

import math

import torch

from ... import tensor_lists
from . import foreach_ops, fused_adam


def correction(beta, step, wanted=True):
    """Return ``1 - beta ** step``, the bias correction of an average that starts at 0; 1 if not wanted."""
    if not wanted or beta == 0:
        return 1.0
    if isinstance(step, torch.Tensor):
        return -torch.expm1(step * math.log(beta))  # the plain formula would lose four digits in float32
    return 1.0 - beta**step


def decayed(grads, weights, decay):
    """Return gradients plus ``decay`` times the weights, as new tensors; the gradients themselves without decay."""
    return foreach_ops.add(grads, weights, alpha=decay) if decay else grads


def adam(weights, grads, means, squares, lr, betas, eps, step, bias_correction, decay, decoupled, skip=None):
    """Adam (Kingma and Ba, 2014), or AdamW (Loshchilov and Hutter, 2017) if the decay is ``decoupled``."""
    options = (eps, step, bias_correction, decay, decoupled, skip)
    if fused_adam.takes(weights, grads, means, squares, lr, step, decoupled):
        fused_adam.update(weights, grads, means, squares, lr, betas, *options)
        return
    direction = adam_direction(weights, grads, means, squares, betas, 1.0 - betas[0], *options)
    foreach_ops.subtract_(weights, direction, lr, skip)


def adam_direction(
    weights, grads, means, squares, betas, share, eps, step, bias_correction, decay, decoupled, skip=None
):
    """Update Adam's two averages; return what to subtract from the weights, before the learning rate.

    ``share`` is the weight of the new gradient in the mean.
    """
    if not decoupled:
        grads = decayed(grads, weights, decay)
    foreach_ops.blend_(means, betas[0], grads, share, skip)
    foreach_ops.accumulate_squares_(squares, betas[1], grads, 1.0 - betas[1], skip)
    roots = foreach_ops.sqrt(squares)
    foreach_ops.scale_(roots, correction(betas[1], step, bias_correction) ** -0.5)
    foreach_ops.add_(roots, eps)
    updates = foreach_ops.div(means, roots)
    foreach_ops.scale_(updates, 1.0 / correction(betas[0], step, bias_correction))
    if decoupled and decay:
        foreach_ops.add_(updates, weights, alpha=decay)
    return updates


def adam_of_2018(
    weights, grads, means, squares, lr, betas, eps, step, bias_correction, decay, eps_inside_sqrt, skip=None
):
    """Adam in the faster order of the paper's section 2: eps is added to the second moment as it is, uncorrected.

    The decay is decoupled, and multiplied by the corrected rate. ``eps_inside_sqrt``: eps is added before the root.
    """
    foreach_ops.blend_(means, betas[0], grads, 1.0 - betas[0], skip)
    foreach_ops.accumulate_squares_(squares, betas[1], grads, 1.0 - betas[1], skip)
    if eps_inside_sqrt:
        roots = foreach_ops.sqrt(foreach_ops.add(squares, eps))
    else:
        roots = foreach_ops.sqrt(squares)
        foreach_ops.add_(roots, eps)
    updates = decayed(foreach_ops.div(means, roots), weights, decay)
    corrections = [correction(beta, step, bias_correction) for beta in betas]
    foreach_ops.subtract_(weights, updates, lr * corrections[1] ** 0.5 / corrections[0], skip)


def sgd(weights, grads, buffers, lr, momentum, dampening, nesterov, decay, decays_last, is_first, skip=None):
    """SGD with momentum; ``buffers`` is None without. ``decays_last``: the decay does not enter the momentum.

    In a first step the buffers become the gradients, whatever they held; with ``skip`` they must hold 0 before it.
    """
    direction = grads if decays_last else decayed(grads, weights, decay)
    if momentum:
        if is_first and skip is None:
            tensor_lists.copy_(buffers, direction)
        else:
            foreach_ops.blend_(buffers, momentum, direction, 1.0 if is_first else 1.0 - dampening, skip)
        direction = foreach_ops.add(direction, buffers, alpha=momentum) if nesterov else buffers
    if decays_last:
        direction = decayed(direction, weights, decay)
    # subtract_ multiplies the direction by a tensor rate in place. The direction may be the buffers, so copy it.
    foreach_ops.subtract_(
        weights, foreach_ops.mul(direction, 1.0) if isinstance(lr, torch.Tensor) else direction, lr, skip
    )


def clip_divisor(norm, limit):
    """Return the divisor that clips gradients of global norm ``norm`` to ``limit``, as a tensor of shape ().

    None or 0 means no limit.
    """
    over = norm / limit if limit else torch.ones_like(norm)
    return torch.where(over > 1, over, torch.ones_like(over))


def trust_ratios(weights, updates):
    """Return (norm of the weight / norm of its update) of each tensor, 1 where either is 0, as one tensor."""
    return ratios(foreach_ops.norms(weights), foreach_ops.norms(updates))


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
        grads = foreach_ops.mul(grads, 1.0)
        foreach_ops.scale_(grads, 1.0 / divisor)
    share = 1.0 - betas[0] if modes["averaging"] else 1.0
    options = (eps, step, bias_correction, decay, modes["decoupled"], skip)
    updates = adam_direction(weights, grads, means, squares, betas, share, *options)
    if decay or modes["nvlamb"]:
        foreach_ops.mul_(updates, list(trust_ratios(weights, updates).unbind()))
    foreach_ops.subtract_(weights, updates, lr, skip)


def blend_norms(averages, news, beta, order):
    """Return NovoGrad's second moments after a step: averaged as squares for 2-norms, directly for maximum norms."""
    if order == 2:
        return (averages * averages * beta + news * news * (1.0 - beta)).sqrt()
    return averages * beta + news * (1.0 - beta)


def novograd(
    weights, grads, means, moments, lr, betas, eps, step, bias_correction, decay, averaging, inside, skip=None
):
    """NovoGrad (Ginsburg et al., 2019), given its second moments of this step.

    Args:
        moments: one tensor of shape (n,): the running norm of each tensor.
        inside: the decay enters the mean, as in the paper; otherwise it is decoupled.
    """
    divisors = moments * correction(betas[1], step, bias_correction) ** -0.5 + eps
    share = 1.0 - betas[0] if averaging else 1.0
    factors = list((1.0 / divisors).unbind())
    if inside:
        foreach_ops.blend_(means, betas[0], decayed(foreach_ops.mul(grads, factors), weights, decay), share, skip)
        updates = foreach_ops.mul(means, 1.0)
    else:
        foreach_ops.blend_(means, betas[0], grads, share, skip)
        updates = foreach_ops.mul(means, factors)
    foreach_ops.scale_(updates, 1.0 / correction(betas[0], step, bias_correction))
    foreach_ops.subtract_(weights, updates if inside else decayed(updates, weights, decay), lr, skip)


def adagrad(weights, grads, sums, lr, eps, decay, decoupled, skip=None):
    """Adagrad (Duchi et al., 2011); a ``decoupled`` decay does not enter the sum of squares."""
    if not decoupled:
        grads = decayed(grads, weights, decay)
    foreach_ops.accumulate_squares_(sums, 1.0, grads, 1.0, skip)
    roots = foreach_ops.sqrt(sums)
    foreach_ops.add_(roots, eps)
    updates = foreach_ops.div(grads, roots)
    foreach_ops.subtract_(weights, decayed(updates, weights, decay) if decoupled else updates, lr, skip)
