"""What the installed torch is and has.

Owns: every look at torch's version and features.
Must not touch: decisions; it reports, ``backends.choose`` decides.
The surprise: a feature is found by trying its name, not by comparing versions, so that nightlies, forks and backports
are judged by what they carry.
"""

import functools
import inspect
import time
import warnings
from contextlib import nullcontext
from typing import Mapping, NamedTuple, Tuple

import torch

# As they are before any session replaces them: the probe is of torch, not of us.
_mm, _conv2d, _conv_transpose2d = torch.mm, torch.nn.functional.conv2d, torch.nn.functional.conv_transpose2d


class Facts(NamedTuple):
    """Facts of one torch in one process.

    ``autocast_devices`` maps a device type that is there to the low dtypes that autocast takes on it.
    ``slow_low_on_cpu`` are the dtypes whose CPU arithmetic is missing or many times slower than float32.
    """

    version: str
    devices: Tuple[str, ...]
    autocast_devices: Mapping[str, Tuple[torch.dtype, ...]]
    slow_low_on_cpu: Tuple[torch.dtype, ...]
    has_inference_mode: bool
    has_functorch: bool
    has_compile: bool


def read():
    """Return the facts of the installed torch."""
    devices = available_devices()
    return Facts(
        version=torch.__version__,
        devices=devices,
        autocast_devices={device: dtypes for device, dtypes in _autocast_devices(devices)},
        slow_low_on_cpu=tuple(dtype for dtype in (torch.float16, torch.bfloat16) if not fast_on_cpu(dtype)),
        has_inference_mode=hasattr(torch, "inference_mode"),
        has_functorch=hasattr(torch._C, "_functorch"),
        has_compile=hasattr(torch, "compile"),
    )


def available_devices():
    """Return the device types of this machine that the installed torch can compute on, the CPU first."""
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices.append("cuda")
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    if mps is not None and mps.is_available():
        devices.append("mps")
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        devices.append("xpu")
    return tuple(devices)


def _autocast_devices(devices):
    for device in devices:
        dtypes = _autocast_dtypes(device)
        if dtypes:
            yield device, dtypes


def _autocast_dtypes(device):
    """Return the low dtypes that autocast really enters for a device type; entering is the only honest question."""
    if not hasattr(torch, "autocast"):  # torch < 1.10; the CUDA-only context of 1.6 cannot be addressed by device
        return ()
    taken = []
    for dtype in (torch.float16, torch.bfloat16):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about a dtype that it will not take
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
def fast_on_cpu(dtype):
    """Return whether products in this dtype take less than 3 times as long on the CPU as in float32: tried, once.

    Without units for a half dtype they take 5 to 160 times as long, with units no longer. One thread tries it: on a
    busy machine threads that wait for each other make everything equally slow.
    """
    if dtype not in (torch.float16, torch.bfloat16):
        return True
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _no_autocast_on_cpu(), torch.no_grad():
            _transposed_convolution(dtype)()  # torch 1.12 has the other kernels in bfloat16, and not this one
            return all(_time_ratio(product, dtype) < 3.0 for product in (_matrix_product, _convolution))
    except (RuntimeError, NotImplementedError):  # torch < 1.10 or so has no such kernels at all
        return False
    finally:
        torch.set_num_threads(threads)


def _matrix_product(dtype):
    matrix = torch.ones(96, 96, dtype=torch.float32, device="cpu").to(dtype)
    return lambda: _mm(matrix, matrix)


def _convolution(dtype):
    image = torch.ones(2, 16, 12, 12, dtype=torch.float32, device="cpu").to(dtype)
    weight = torch.ones(16, 16, 3, 3, dtype=torch.float32, device="cpu").to(dtype)
    return lambda: _conv2d(image, weight)


def _transposed_convolution(dtype):
    image = torch.ones(1, 3, 4, 4, dtype=torch.float32, device="cpu").to(dtype)
    weight = torch.ones(3, 2, 2, 2, dtype=torch.float32, device="cpu").to(dtype)
    return lambda: _conv_transpose2d(image, weight)


def _time_ratio(product, dtype):
    """Return how many times as long a product takes in ``dtype`` as in float32: the best of a few tries of each."""
    best = [float("inf"), float("inf")]
    runs = product(dtype), product(torch.float32)
    for _ in range(10):
        for index, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[index] = min(best[index], time.perf_counter() - start)
    return best[0] / max(best[1], 1e-9)


def _no_autocast_on_cpu():
    if not hasattr(torch, "autocast"):
        return nullcontext()
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)


@functools.lru_cache(maxsize=None)
def has_function_modes():
    """Return whether a torch function mode can be entered that sees every call of a function of torch's (2.0)."""
    return hasattr(torch, "overrides") and hasattr(torch._C, "_push_on_torch_function_stack")


@functools.lru_cache(maxsize=None)
def has_nested_saved_tensor_hooks():
    """Return whether hooks on what autograd saves can be entered that call those of a user around them."""
    engine = getattr(torch._C, "_autograd", None)
    names = ("_top_saved_tensors_default_hooks", "_saved_tensors_hooks_is_enabled")
    return all(hasattr(engine, name) for name in names)


def saved_tensor_hooks_in_force():
    """Return the (pack, unpack) pair of the innermost hooks on what autograd saves, or None: also where torch cannot tell."""
    top = getattr(getattr(torch._C, "_autograd", None), "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(False)


def takes_saved_tensor_hooks():
    """Return whether hooks on what autograd saves (torch 1.10) can be entered here and now."""
    is_enabled = getattr(getattr(torch._C, "_autograd", None), "_saved_tensors_hooks_is_enabled", None)
    has_hooks = hasattr(getattr(torch.autograd, "graph", None), "saved_tensors_hooks")
    return has_hooks and (is_enabled is None or is_enabled())


@functools.lru_cache(maxsize=None)
def has_dispatch_modes():
    """Return whether a mode can be entered that sees every operation below autograd (1.13; 1.12's is of another kind)."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return False
    return hasattr(TorchDispatchMode, "__enter__")


@functools.lru_cache(maxsize=None)
def has_foreach():
    """Return whether torch multiplies and adds lists of tensors in one operation (1.6 and later)."""
    return hasattr(torch, "_foreach_mul_") and hasattr(torch, "_foreach_add_")


@functools.lru_cache(maxsize=None)
def has_foreach_copy():
    """Return whether torch copies a list of tensors into another of other dtypes in one operation."""
    return hasattr(torch, "_foreach_copy_")


@functools.lru_cache(maxsize=None)
def has_foreach_unscale(device_type):
    """Return whether torch's fused unscale-and-check takes lists of tensors on this type of device."""
    fused = getattr(torch, "_amp_foreach_non_finite_check_and_unscale_", None)
    if fused is None:
        return False
    found, factor = torch.zeros((), device=device_type), torch.ones((), device=device_type)
    try:
        fused([torch.ones(1, device=device_type)], found, factor)
    except (RuntimeError, NotImplementedError):  # no kernel for the CPU before torch 2.3
        return False
    return True


@functools.lru_cache(maxsize=None)
def has_fused_scale_update(device_type):
    """Return whether torch changes a loss scale in one operation on this type of device."""
    fused = getattr(torch, "_amp_update_scale_", None)
    scale, flag = torch.ones((), device=device_type), torch.zeros((), device=device_type)
    try:
        fused(scale, torch.zeros((), dtype=torch.int32, device=device_type), flag, 2.0, 0.5, 2)
    except (RuntimeError, NotImplementedError, TypeError):  # absent, no CPU kernel, or the signature of torch 1.6
        return False
    return True


@functools.lru_cache(maxsize=None)
def has_mixed_batch_norm(device, low, high):
    """Return whether batch norm takes an input of dtype ``low`` with params and statistics of dtype ``high``."""
    wide = torch.ones(2, dtype=high, device=device)
    narrow = torch.ones(3, 2, dtype=low, device=device, requires_grad=True)
    try:
        torch.nn.functional.batch_norm(narrow, wide, wide.clone(), wide.clone(), wide.clone(), True).sum().backward()
    except RuntimeError:
        return False
    return True


@functools.lru_cache(maxsize=None)
def has_tanh_gelu():
    """Return whether ``torch.nn.functional.gelu`` computes the approximation by tanh (1.12)."""
    try:
        torch.nn.functional.gelu(torch.ones(1), approximate="tanh")
    except TypeError:
        return False
    return True


def has_hooks_with_kwargs():
    """Return whether forward pre-hooks can be told keyword arguments (2.0)."""
    return "with_kwargs" in inspect.signature(torch.nn.Module.register_forward_pre_hook).parameters


def version():
    """Return torch's version."""
    return str(torch.__version__)
