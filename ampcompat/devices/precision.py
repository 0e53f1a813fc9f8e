"""torch's own mixed precision, asked for on CUDA, works on the target.

Owns: the stand-ins of ``torch.autocast``, its queries, and of the two operations of ``GradScaler``.
Must not touch: the flags and dtypes of the target's autocast, beyond the region that the script opens.
The surprise: a region keeps CUDA's default, float16, where autocast on the target takes it, and gets bfloat16 where
it does not (CPU before torch 2.3 or so). A torch whose autocast knows only CUDA (1.6 to 1.9) computes in float32
inside.
"""

import functools
import inspect

import torch

from ..parts import tensors
from ..tables import torch_facts


def _type_of(target, device_type):
    return target.type if target.means_cuda(device_type) else device_type


def autocast_init(target, original):
    """Return ``torch.autocast.__init__``, which that of ``torch.cuda.amp.autocast`` calls."""
    signature = inspect.signature(original)
    accepted = torch_facts.autocast_dtypes(target.type)

    @functools.wraps(original)
    def init(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        if target.means_cuda(given["device_type"]):
            wanted = torch.float16 if given.get("dtype") is None else given["dtype"]
            given.update(device_type=target.type, dtype=wanted if wanted in accepted else torch.bfloat16)
        original(*bound.args, **bound.kwargs)

    return init


def is_autocast_enabled(target, original):
    """Return ``torch.is_autocast_enabled``, whose question without a device is about CUDA."""
    if not hasattr(torch, "get_autocast_dtype"):  # torch < 2.4: one function per device
        return getattr(torch, "is_autocast_{}_enabled".format(target.type), original)

    @functools.wraps(original)
    def is_enabled(device_type="cuda"):
        return original(_type_of(target, device_type))

    return is_enabled


def first_type(target, original):
    """Return a function whose first argument is a device type."""

    @functools.wraps(original)
    def redirected(device_type, *args, **kwargs):
        return original(_type_of(target, device_type), *args, **kwargs)

    return redirected


def get_autocast_gpu_dtype(target, original):
    """Return ``torch.get_autocast_gpu_dtype``."""
    if hasattr(torch, "get_autocast_dtype"):
        of_type = torch.get_autocast_dtype
        return functools.wraps(original)(lambda: of_type(target.type))
    return getattr(torch, "get_autocast_{}_dtype".format(target.type), original)


def custom_function(target, original):
    """Return ``torch.cuda.amp.custom_fwd`` or ``custom_bwd``."""
    name = getattr(original, "__name__", None) or original.func.__name__
    if not hasattr(torch.amp if hasattr(torch, "amp") else None, name):
        return original  # it asks torch.is_autocast_enabled and enters torch.cuda.amp.autocast, both redirected
    return functools.partial(getattr(torch.amp, name), device_type="cuda")


def check_and_unscale(target, original):
    """Return GradScaler's operation over the gradients, for a device that torch has it not for (CPU before 2.3)."""
    if torch_facts.has_foreach_unscale(target.type):
        return original

    @functools.wraps(original)
    def check(grads, found_inf, inv_scale):
        for grad in grads:
            if not tensors.all_finite(grad):
                found_inf.fill_(1.0)
            grad.mul_(inv_scale.to(grad.dtype))

    return check


def update_scale(target, original):
    """Return GradScaler's operation on its scale, likewise."""
    if torch_facts.has_fused_scale_update(target.type):
        return original

    @functools.wraps(original)
    def update(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval):
        good_steps = 0 if found_inf.item() else int(growth_tracker.item()) + 1
        if found_inf.item():
            scale.mul_(backoff_factor)
        elif good_steps == growth_interval:
            scale.mul_(growth_factor)
            good_steps = 0
        growth_tracker.fill_(good_steps)
        return scale

    return update
