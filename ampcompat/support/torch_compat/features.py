"""The version and the features of the installed torch.

A feature is detected by its name or by a trial call, not by the version, so that nightlies, forks and backports are
recognized by their features. This module only reports; ``casting.choose`` and other callers decide.
"""

import functools
import inspect
import sys
import warnings
import weakref
from typing import Mapping, NamedTuple, Tuple

import torch
from packaging.version import Version

from .thread_context import tried_once

# The originals, before ``cuda_redirect`` replaces them.
_cuda_is_available = torch.cuda.is_available
_foreach_unscale = getattr(torch, "_amp_foreach_non_finite_check_and_unscale_", None)


class Facts(NamedTuple):
    """Facts of one torch in one process.

    ``autocast_devices`` maps each available device type to the low dtypes that autocast supports on it.
    """

    version: str
    devices: Tuple[str, ...]
    autocast_devices: Mapping[str, Tuple[torch.dtype, ...]]


def read():
    """Return the facts of the installed torch."""
    devices = available_devices()
    return Facts(
        version=torch.__version__,
        devices=devices,
        autocast_devices={device: autocast_dtypes(device) for device in devices if autocast_dtypes(device)},
    )


def available_devices():
    """Return the device types of this machine that the installed torch can compute on, the CPU first."""
    devices = ["cpu"]
    if _cuda_is_available():
        devices.append("cuda")
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    if mps is not None and mps.is_available():
        devices.append("mps")
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        devices.append("xpu")
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6; it also knows backends of other packages
    if accelerator is not None and accelerator.is_available():
        other = accelerator.current_accelerator().type
        devices += [other] if other not in ("cuda", "mps", "xpu") else []
    if "torch_xla" in sys.modules:  # the script has imported it; torch.accelerator does not know it
        devices.append("xla")
    return tuple(devices)


@functools.lru_cache(maxsize=None)
def autocast_dtypes(device):
    """Return the low dtypes that autocast supports on a device type, found by entering the context."""
    if not hasattr(torch, "autocast"):  # torch < 1.10; the CUDA-only context of 1.6 does not accept a device
        return ()
    taken = []
    for dtype in (torch.float16, torch.bfloat16):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about a dtype that it does not support
            try:
                context = torch.autocast(device, dtype=dtype)
                with context:
                    entered = getattr(context, "_enabled", False)
            except (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError):
                entered = False
        if entered:
            taken.append(dtype)
    return tuple(taken)


@functools.lru_cache(maxsize=None)
def has_function_modes():
    """Return whether a torch function mode can be entered that handles every call of a torch function (2.0)."""
    return hasattr(torch, "overrides") and hasattr(torch._C, "_push_on_torch_function_stack")


@functools.lru_cache(maxsize=None)
def has_nested_saved_tensor_hooks():
    """Return whether saved-tensor hooks can call the user's hooks that are outside of them."""
    engine = getattr(torch._C, "_autograd", None)
    names = ("_top_saved_tensors_default_hooks", "_saved_tensors_hooks_is_enabled")
    return all(hasattr(engine, name) for name in names)


@tried_once
def keeps_gradient_objects():
    """Return whether a gradient stays the same Python object while Python has no reference to it."""
    param = torch.nn.Parameter(torch.zeros(1))
    param.grad = torch.zeros(1)
    reference = weakref.ref(param.grad)
    return reference() is not None and reference() is param.grad


@functools.lru_cache(maxsize=None)
def has_dispatch_modes():
    """Return whether a dispatch mode can be entered that handles every operation below autograd (2.0)."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Mode(TorchDispatchMode):
            _should_skip_dynamo = classmethod(lambda cls: False)  # or the first operation imports torch's compiler: 2 s

            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                return function(*args, **(kwargs or {}))

        hooks = torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda tensor: tensor)
        with torch.enable_grad(), Mode(), hooks:
            (torch.ones(1, requires_grad=True) * 2.0).mul(3.0)
    # The mode of 1.12 is not a context manager; that of 1.13 fails on numbers.
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return False
    return True


@functools.lru_cache(maxsize=None)
def queued_callbacks_survive():
    """Return whether callbacks queued by a backward pass within a backward pass are called at its end (1.6)."""
    return hasattr(torch, "is_autocast_enabled")  # added in the same release


@functools.lru_cache(maxsize=None)
def foreach(name):
    """Return torch's foreach operation of this name, such as ``add_``, or None."""
    return getattr(torch, "_foreach_" + name, None) if broadcasts_foreach() else None


def works(function, *args, **kwargs):
    """Return whether a call raises no error, such as that torch has no function, argument or kernel for it."""
    try:
        function(*args, **kwargs)
    except (AttributeError, TypeError, RuntimeError):
        return False
    return True


@tried_once
def broadcasts_foreach():
    """Return whether foreach operations broadcast, as those of single tensors do (1.10 and later)."""
    return works(lambda: torch._foreach_mul([torch.ones(1)], [torch.ones(())]))


def version_of(tensor):
    """Return a tensor's version; None for one that was made in inference mode, which has none."""
    try:
        return tensor._version
    except RuntimeError:  # torch 1.9 has no ``Tensor.is_inference``
        return None


@tried_once
def promotes():
    """Return whether torch promotes the arguments of arithmetic and comparisons, in place too (1.12, not 1.9)."""
    return works(torch.zeros(1).eq_, torch.zeros(1, dtype=torch.float64))


@tried_once
def promotes_in_addcmul():
    """Return whether torch promotes the arguments of ``addcmul_`` and ``addcdiv_`` (2.4, not 1.12)."""
    return works(torch.zeros(1).addcmul_, torch.zeros(1, dtype=torch.float64), torch.zeros(1))


@functools.lru_cache(maxsize=None)
def has_foreach():
    """Return whether torch multiplies and adds lists of tensors in one operation (1.6 and later)."""
    return hasattr(torch, "_foreach_mul_") and hasattr(torch, "_foreach_add_")


@functools.lru_cache(maxsize=None)
def has_foreach_copy():
    """Return whether torch copies a list of tensors into another of other dtypes in one operation."""
    return hasattr(torch, "_foreach_copy_")


@tried_once
def foreach_moves_versions(device_type):
    """Return whether foreach operations in place move version counters on this type of device; not those of xla."""
    if not has_foreach():
        return True
    tensor = torch.zeros(1, device=device_type)
    version = tensor._version
    torch._foreach_add_([tensor], [torch.ones_like(tensor)])
    return tensor._version != version


@functools.lru_cache(maxsize=None)
def has_complex_views():
    """Return whether a complex tensor can be viewed as a real one (1.6)."""
    return hasattr(torch, "view_as_real")


@tried_once
def foreach_norm_takes(order, wide):
    """Return whether torch computes the norms of a list of tensors of this order in one operation.

    Args:
        order: a number; infinity is supported since the release that added ``_foreach_max``.
        wide: whether the result must be float32, whatever the dtype of the tensors.
    """
    norm = getattr(torch, "_foreach_norm", None)
    if norm is None or order not in (1, 2) and not hasattr(torch, "_foreach_max"):
        return False
    try:
        (found,) = norm([torch.ones(1, dtype=torch.float16)], order, **({"dtype": torch.float32} if wide else {}))
    except (TypeError, RuntimeError):
        return not wide
    return not wide or found.dtype is torch.float32


@tried_once
def has_foreach_mul_by_tensor():
    """Return whether torch multiplies a list of tensors by one tensor of shape () in one operation (2.1)."""
    return works(lambda: torch._foreach_mul_([torch.ones(1)], torch.ones(())))


@tried_once
def has_flagged_sgd(device_type):
    """Return whether torch's fused SGD on this device type leaves params unchanged if ``found_inf`` is 1."""
    param, flag = torch.ones(1, device=device_type), torch.ones((), device=device_type)
    options = {"weight_decay": 0.0, "momentum": 0.0, "lr": 1.0, "dampening": 0.0, "nesterov": False}
    options.update(maximize=False, is_first_step=False, grad_scale=None)
    try:
        torch._fused_sgd_([param], [torch.ones_like(param)], [], found_inf=flag, **options)
        skipped = param.item() == 1.0
        torch._fused_sgd_([param], [torch.ones_like(param)], [], found_inf=torch.zeros_like(flag), **options)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):  # torch before 2.3, or no such kernel
        return False
    return skipped and param.item() == 0.0


def has_rms_norm(device_type):
    """Return whether torch has an RMS norm kernel on this type of device, not just a composition of others."""
    # Called within forward, so not cached: torch.compile warns about tracing a cache.
    return device_type != "cpu" and hasattr(torch.nn.functional, "rms_norm")


@tried_once
def has_foreach_unscale(device_type, dtype=torch.float32):
    """Return whether torch's fused unscale-and-check accepts lists of tensors of a dtype on this type of device.

    The factor is float32.
    """
    if _foreach_unscale is None:
        return False
    found, factor = torch.zeros((), device=device_type), torch.ones((), device=device_type)
    tensor = torch.ones(1, device=device_type, dtype=dtype)
    # No kernel for the CPU before torch 2.3; xla: no mix of dtypes.
    return works(_foreach_unscale, [tensor], found, factor) and works(tensor.tolist)


@tried_once
def has_fused_scale_update(device_type):
    """Return whether torch updates a loss scale in one operation on this type of device."""
    fused = getattr(torch, "_amp_update_scale_", None)
    scale, flag = torch.ones((), device=device_type), torch.zeros((), device=device_type)
    growth = torch.zeros((), dtype=torch.int32, device=device_type)
    # Absent, no CPU kernel, or the signature of torch 1.6.
    return works(fused, scale, growth, flag, 2.0, 0.5, 2) and works(scale.tolist)


@tried_once
def has_mixed_batch_norm(device, low, high):
    """Return whether batch norm accepts an input of dtype ``low`` with params and statistics of dtype ``high``.

    The result must be of dtype ``low``. torch_xla's is called so, and is of dtype ``high`` for the next operation.
    """
    try:
        wide = torch.ones(2, dtype=high, device=device)
        narrow = torch.ones(3, 2, dtype=low, device=device, requires_grad=True)
        output = torch.nn.functional.batch_norm(narrow, wide, wide.clone(), wide.clone(), wide.clone(), True)
        output.grad_fn(torch.ones_like(output))  # not ``backward``, which the casts wrap
        torch.stack([output.detach(), narrow.detach()]).tolist()
    except RuntimeError:
        return False
    return True


@tried_once
def has_tanh_gelu():
    """Return whether ``torch.nn.functional.gelu`` supports the tanh approximation (1.12)."""
    return works(torch.nn.functional.gelu, torch.ones(1), approximate="tanh")


@functools.lru_cache(maxsize=None)
def has_hooks_with_kwargs():
    """Return whether forward pre-hooks can receive keyword arguments (2.0)."""
    return "with_kwargs" in inspect.signature(torch.nn.Module.register_forward_pre_hook).parameters


def version():
    """Return torch's version."""
    return str(torch.__version__)


def is_version_within(oldest=None, newest=None):
    """Return whether torch's version is between two others, inclusive; None means no bound.

    A bound of two numbers includes all releases that begin with them: 2.15.3 is within 2.15.
    """
    release = Version(version()).release
    if oldest is not None and release < Version(oldest).release:
        return False
    return newest is None or release[: len(Version(newest).release)] <= Version(newest).release


#: The minor versions of torch that the test suite passes on, oldest first: docs/machine.md.
TESTED = (
    *"1.3 1.4 1.5 1.6 1.7 1.8 1.9 1.10 1.11 1.12 1.13".split(),
    *"2.0 2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 2.9 2.10 2.11 2.12 2.13 2.14 2.15".split(),
)


def untested():
    """Return the message for a torch of an untested minor version, which names the nearest tested ones, or None."""
    older = [each for each in TESTED if is_version_within(oldest=each)]
    newer = [each for each in TESTED if is_version_within(newest=each)]
    if set(older) & set(newer):
        return None
    return "torch {} is not tested; nearest tested: {}".format(version(), " and ".join(older[-1:] + newer[:1]))
