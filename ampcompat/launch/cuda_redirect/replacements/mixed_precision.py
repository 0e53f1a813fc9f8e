"""Replacements for torch's own mixed precision on CUDA: ``torch.autocast``, its flags, the kernels of ``GradScaler``.

An autocast region keeps CUDA's default dtype, float16, if autocast on the target supports it; otherwise it uses
bfloat16 (CPU before torch 2.3). If torch's autocast supports only CUDA (1.6 to 1.9), the region computes in float32.
"""

import functools
import inspect

import torch

from ....support import tensor_lists
from ....support.torch_compat import features


def _translated_type(target, device_type):
    return target.type if target.means_cuda(device_type) else device_type


def autocast_init(target, original):
    """Replace ``torch.autocast.__init__``, which ``torch.cuda.amp.autocast.__init__`` calls."""
    signature = inspect.signature(original)
    supported = features.autocast_dtypes(target.type)

    @functools.wraps(original)
    def init(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        options = given if "dtype" in signature.parameters else given.setdefault("kwargs", {})  # torch 1.10
        if target.means_cuda(given["device_type"]):
            dtype = torch.float16 if options.get("dtype") is None else options["dtype"]
            given["device_type"], options["dtype"] = target.type, dtype if dtype in supported else torch.bfloat16
        original(*bound.args, **bound.kwargs)

    return init


def autocast_flag(target, original):
    """Replace a function that reads or sets an autocast flag, that of CUDA if no device is given."""
    name = original.__name__
    if not hasattr(torch, "get_autocast_dtype"):  # torch < 2.4: one function per device
        other = name if "gpu" in name else name.replace("autocast", "autocast_gpu")
        return getattr(torch, other.replace("gpu", target.type), original)
    by_device = getattr(torch, name.replace("_gpu", ""))

    @functools.wraps(original)
    def flag(*args):
        if args and isinstance(args[0], str):
            return by_device(_translated_type(target, args[0]), *args[1:])
        return by_device(target.type, *args)

    return _constant_when_compiled(flag)


def _constant_when_compiled(function):
    """Let torch.compile evaluate a function that reads a flag, as it evaluates torch's own, and guards on the flags."""
    if not function.__name__.startswith("set_"):
        function._dynamo_marked_constant = True
    return function


def translate_device_type(target, original):
    """Replace a function whose first argument is a device type."""

    @functools.wraps(original)
    def redirected(device_type, *args, **kwargs):
        return original(_translated_type(target, device_type), *args, **kwargs)

    return _constant_when_compiled(redirected)


def custom_function(target, original):
    """Replace ``torch.cuda.amp.custom_fwd`` or ``custom_bwd``."""
    name = getattr(original, "__name__", None) or original.func.__name__
    if not hasattr(torch.amp if hasattr(torch, "amp") else None, name):
        return original  # it uses torch.is_autocast_enabled and torch.cuda.amp.autocast, both redirected
    return functools.partial(getattr(torch.amp, name), device_type=target.type)


def check_and_unscale(target, original):
    """Replace GradScaler's kernel on gradients (in torch 1.6: on one gradient) if torch has none for the target."""
    if features.has_foreach_unscale(target.type):
        return original

    @functools.wraps(original)
    def check(grads, found_inf, inv_scale):
        tensor_lists.check_and_scale_([grads] if isinstance(grads, torch.Tensor) else grads, inv_scale, found_inf)

    return check


def update_scale(target, original):
    """Replace GradScaler's kernel that updates the scale if torch has none for the target."""
    if features.has_fused_scale_update(target.type):
        return original

    @functools.wraps(original)
    def update(scale, growth_tracker, *args):
        return scale.copy_(compute_new_scale(target, original, growth_tracker, scale, *args))

    return update


def compute_new_scale(
    target, original, growth_tracker, scale, found_inf, growth_factor, backoff_factor, growth_interval
):
    """Return the new scale, and count: the kernel of torch 1.6."""
    overflowed, good_steps = bool(found_inf.item()), int(growth_tracker.item()) + 1
    grows = not overflowed and good_steps == growth_interval
    growth_tracker.fill_(0 if overflowed or grows else good_steps)
    return scale * (backoff_factor if overflowed else growth_factor if grows else 1.0)
