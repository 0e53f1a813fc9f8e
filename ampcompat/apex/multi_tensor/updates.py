"""The published update rules of Adam, SGD, LAMB, NovoGrad and Adagrad, for lists of tensors.

All tensors of a list have the same device and the dtype to compute in. Gradients are never modified. A step count or a
learning rate may be a tensor of shape (), for steps that are captured in a CUDA graph. ``found_inf`` is a float32
tensor of shape () on the device of the lists, or None. If it is 1, weights and state do not change, whatever the
gradients contain; the host does not read it.
"""

import math

import torch

from ...support import tensor_lists
from ...support.torch_compat.thread_context import tried_once
from . import foreach_ops


def correction(beta, step, enabled=True):
    """Return ``1 - beta ** step``, the bias correction of an average that starts at 0; 1 if not ``enabled``."""
    if not enabled or beta == 0:
        return 1.0
    if isinstance(step, torch.Tensor):
        return -torch.expm1(step * math.log(beta))  # the plain formula would lose four digits in float32
    return 1.0 - beta**step


def add_weight_decay(grads, weights, decay):
    """Return gradients plus ``decay`` times the weights, as new tensors; the gradients themselves without decay."""
    return foreach_ops.add(grads, weights, alpha=decay) if decay else grads


def adam(weights, grads, means, squares, lr, betas, eps, step, bias_correction, decay, decoupled, found_inf=None):
    """Adam (Kingma and Ba, 2014), or AdamW (Loshchilov and Hutter, 2017) if the decay is ``decoupled``."""
    options = (eps, step, bias_correction, decay, decoupled, found_inf)
    lists = (weights, grads, means, squares)
    fused = supported(*lists, lr, decoupled)
    if fused:
        update(*_at(fused, lists), lr, betas, *options)
    if len(fused) < len(weights):
        rest = _at(sorted(set(range(len(weights))) - set(fused)), lists)
        direction = adam_direction(*rest, betas, 1.0 - betas[0], *options)
        foreach_ops.subtract_(rest[0], direction, lr, found_inf)


def _at(indices, lists):
    """Return the elements of each list at these indices, ascending numbers."""
    return lists if len(indices) == len(lists[0]) else [[each[index] for index in indices] for each in lists]


def adam_direction(
    weights, grads, means, squares, betas, grad_weight, eps, step, bias_correction, decay, decoupled, found_inf=None
):
    """Update Adam's two averages; return what to subtract from the weights, before the learning rate.

    ``grad_weight`` is the weight of the new gradient in the mean.
    """
    if not decoupled:
        grads = add_weight_decay(grads, weights, decay)
    foreach_ops.update_average_(means, betas[0], grads, grad_weight, found_inf)
    foreach_ops.update_square_average_(squares, betas[1], grads, 1.0 - betas[1], found_inf)
    roots = foreach_ops.sqrt(squares)
    foreach_ops.scale_(roots, correction(betas[1], step, bias_correction) ** -0.5)
    foreach_ops.add_(roots, eps)
    updates = foreach_ops.div(means, roots)
    foreach_ops.scale_(updates, 1.0 / correction(betas[0], step, bias_correction))
    if decoupled and decay:
        foreach_ops.add_(updates, weights, alpha=decay)
    return updates


def legacy_adam(
    weights, grads, means, squares, lr, betas, eps, step, bias_correction, decay, eps_inside_sqrt, found_inf=None
):
    """Adam in the faster order of the paper's section 2: eps is added to the second moment as it is, uncorrected.

    The decay is decoupled and multiplied by the corrected rate. ``eps_inside_sqrt``: eps is added before the root.
    """
    foreach_ops.update_average_(means, betas[0], grads, 1.0 - betas[0], found_inf)
    foreach_ops.update_square_average_(squares, betas[1], grads, 1.0 - betas[1], found_inf)
    if eps_inside_sqrt:
        roots = foreach_ops.sqrt(foreach_ops.add(squares, eps))
    else:
        roots = foreach_ops.sqrt(squares)
        foreach_ops.add_(roots, eps)
    updates = add_weight_decay(foreach_ops.div(means, roots), weights, decay)
    corrections = [correction(beta, step, bias_correction) for beta in betas]
    foreach_ops.subtract_(weights, updates, lr * corrections[1] ** 0.5 / corrections[0], found_inf)


def sgd(
    weights, grads, buffers, lr, momentum, dampening, nesterov, decay, decay_after_momentum, is_first, found_inf=None
):
    """SGD with momentum; ``buffers`` is None without. ``decay_after_momentum``: the decay does not enter the momentum.

    In the first step, the buffers become the gradients, whatever their values; with ``found_inf``, they must be 0
    before it.
    """
    direction = grads if decay_after_momentum else add_weight_decay(grads, weights, decay)
    if momentum:
        if is_first and found_inf is None:
            tensor_lists.copy_(buffers, direction)
        else:
            foreach_ops.update_average_(buffers, momentum, direction, 1.0 if is_first else 1.0 - dampening, found_inf)
        direction = foreach_ops.add(direction, buffers, alpha=momentum) if nesterov else buffers
    if decay_after_momentum:
        direction = add_weight_decay(direction, weights, decay)
    if isinstance(lr, torch.Tensor):  # subtract_ then multiplies the direction in place, which may be the buffers
        direction = foreach_ops.mul(direction, 1.0)
    foreach_ops.subtract_(weights, direction, lr, found_inf)


def clip_divisor(norm, limit):
    """Return the divisor that clips gradients of global norm ``norm`` to ``limit``, as a tensor of shape ().

    None or 0 means no limit.
    """
    over = norm / limit if limit else torch.ones_like(norm)
    return torch.where(over > 1, over, torch.ones_like(over))


def trust_ratios(weight_norms, update_norms):
    """Return the quotients of norms, 1 where either is 0."""
    both = (weight_norms != 0) & (update_norms != 0)
    return torch.where(both, weight_norms / update_norms, torch.ones_like(weight_norms))


def lamb(
    weights, grads, means, squares, divisor, lr, betas, eps, step, bias_correction, decay, found_inf=None, **modes
):
    """LAMB (You et al., 2019): Adam's direction, with its length per tensor adapted to that of the weight.

    Args:
        divisor: a tensor of shape () that gradients are divided by first, see ``clip_divisor``; or None.
        modes: ``grad_averaging`` (the new gradient's weight in the mean is 1 - beta1, not 1), ``decoupled`` (AdamW's
            decay), ``nvlamb`` (adapts also where there is no weight decay).
    """
    if divisor is not None:
        grads = foreach_ops.scaled(grads, 1.0 / divisor)
    grad_weight = 1.0 - betas[0] if modes["grad_averaging"] else 1.0
    options = (eps, step, bias_correction, decay, modes["decoupled"], found_inf)
    updates = adam_direction(weights, grads, means, squares, betas, grad_weight, *options)
    if decay or modes["nvlamb"]:
        ratios = trust_ratios(foreach_ops.norms(weights), foreach_ops.norms(updates))
        foreach_ops.mul_(updates, list(ratios.unbind()))
    foreach_ops.subtract_(weights, updates, lr, found_inf)


def update_moments(averages, values, beta, order):
    """Return NovoGrad's second moments after a step: averaged as squares for 2-norms, directly for maximum norms."""
    if order == 2:
        return (averages * averages * beta + values * values * (1.0 - beta)).sqrt()
    return averages * beta + values * (1.0 - beta)


def novograd(
    weights,
    grads,
    means,
    moments,
    lr,
    betas,
    eps,
    step,
    bias_correction,
    decay,
    grad_averaging,
    reg_inside_moment,
    found_inf=None,
):
    """NovoGrad (Ginsburg et al., 2019), given its second moments of this step, the running norms, of shape (n,).

    ``reg_inside_moment``: the decay enters the mean, as in the paper; otherwise it is decoupled.
    """
    divisors = moments * correction(betas[1], step, bias_correction) ** -0.5 + eps
    grad_weight = 1.0 - betas[0] if grad_averaging else 1.0
    factors = list((1.0 / divisors).unbind())
    if reg_inside_moment:
        grads = add_weight_decay(foreach_ops.mul(grads, factors), weights, decay)
    foreach_ops.update_average_(means, betas[0], grads, grad_weight, found_inf)
    updates = foreach_ops.mul(means, 1.0 if reg_inside_moment else factors)
    foreach_ops.scale_(updates, 1.0 / correction(betas[0], step, bias_correction))
    if not reg_inside_moment:
        updates = add_weight_decay(updates, weights, decay)
    foreach_ops.subtract_(weights, updates, lr, found_inf)


def adagrad(weights, grads, sums, lr, eps, decay, decoupled, found_inf=None):
    """Adagrad (Duchi et al., 2011); a ``decoupled`` decay does not enter the sum of squares."""
    if not decoupled:
        grads = add_weight_decay(grads, weights, decay)
    foreach_ops.update_square_average_(sums, 1.0, grads, 1.0, found_inf)
    roots = foreach_ops.sqrt(sums)
    foreach_ops.add_(roots, eps)
    updates = foreach_ops.div(grads, roots)
    if decoupled:
        updates = add_weight_decay(updates, weights, decay)
    foreach_ops.subtract_(weights, updates, lr, found_inf)


def supported(weights, grads, means, squares, lr, decoupled):
    """Return which tensors of these lists ``update`` supports, as a list of indices.

    It requires a single dtype and a number as learning rate. The kernels ignore strides, so the tensors must be
    contiguous. This is decided for each weight separately: its result must not depend on the other weights in the step.
    """
    lists = (weights, grads, means, squares)
    if isinstance(lr, torch.Tensor) or len({each[0].dtype for each in lists}) > 1:
        return []
    if not _is_available(weights[0].device, weights[0].dtype, bool(decoupled)):
        return []
    return [index for index, row in enumerate(zip(*lists)) if all([tensor.is_contiguous() for tensor in row])]


def update(weights, grads, means, squares, lr, betas, eps, step, bias_correction, decay, decoupled, found_inf=None):
    """Do the same as ``updates.adam``."""
    operation = torch._fused_adamw_ if decoupled else torch._fused_adam_
    if not bias_correction:
        step = float("inf")  # makes both corrections 1
    if not isinstance(step, torch.Tensor):
        step = torch.full((), step, dtype=torch.float32, device=weights[0].device)
    steps = [step.to(torch.float32)] * len(weights)
    options = {"lr": float(lr), "beta1": betas[0], "beta2": betas[1], "weight_decay": float(decay), "eps": float(eps)}
    options.update(amsgrad=False, maximize=False, grad_scale=None, found_inf=found_inf)
    operation(weights, grads, means, squares, [], steps, **options)


@tried_once
def _is_available(device, dtype, decoupled):
    """Return whether the operation exists for a device and dtype and is right without bias correction; tested once."""
    weight, grad = torch.full((1,), 2.0, dtype=dtype, device=device), torch.ones(1, dtype=dtype, device=device)
    mean, square = torch.zeros_like(grad), torch.zeros_like(grad)
    try:
        update([weight], [grad], [mean], [square], 0.5, (0.5, 0.5), 0.0, 1, False, 0.1, decoupled)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):  # torch < 2.0; no CPU kernel before 2.4
        return False
    return abs(weight.item() - ((1.9 if decoupled else 2.0) - 0.5 * 0.5**0.5)) < 1e-5
