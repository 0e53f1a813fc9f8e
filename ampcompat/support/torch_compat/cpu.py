"""Whether half arithmetic on this machine's CPU is emulated, and whether torch has kernels for it.

The results depend only on what torch reports. Nothing is timed, because numerics would then differ between processes.
"""

import os
import warnings

import torch

from .features import works
from .thread_context import tried_once

#: Environment variables that limit which of the CPU's units oneDNN uses; torch computes matrix products with oneDNN.
#: torch.cpu.get_capabilities() ignores them and reports all units of the CPU.
ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def emulation(dtype):
    """Return (whether arithmetic in ``dtype`` on the CPU is emulated in float32, the reason in words).

    float16 always is: torch 2.13 and 2.15 run the backward pass of a float16 convolution in a reference kernel, which
    takes 30 to 340 times as long as float32, even with AVX512-FP16. bfloat16 is emulated unless there are AMX units for
    it: with them, medium-sized convolutions, matrix products, LSTM and GRU took 0.3 to 1.3 times as long as float32,
    forward and backward; with AVX512-BF16 alone up to 3.2 times (LSTM backward 1.8, RNN backward 2.6), without any
    units 2 to 40 times.
    """
    if dtype is torch.float16:
        return (
            True,
            "torch's float16 kernels for CPUs are many times slower than float32, especially in backward passes",
        )
    if dtype is torch.bfloat16:
        lacking = _lacking_for_bfloat16()
        return lacking is not None, lacking or "torch reports AMX units for bfloat16"
    return False, "it is not a 16-bit dtype"


def _lacking_for_bfloat16():
    """Return the reason why bfloat16 products are not all fast, forward and backward, or None."""
    capabilities = getattr(getattr(torch, "cpu", None), "get_capabilities", None)
    if capabilities is None:
        return "this torch does not report which units the CPU has"
    if not capabilities().get("amx_bf16"):
        return "torch reports no AMX units; without them bfloat16 is slower than float32 in many layers"
    if not torch.backends.mkldnn.is_available():
        return "this torch was built without oneDNN, which uses the AMX units of this CPU"
    name, limit = _isa_limit()
    if limit.upper() not in ("", "ALL", "DEFAULT") and "AMX" not in limit.upper():
        return f"{name}={limit} prevents oneDNN from using the AMX units of this CPU"
    return None


def _isa_limit():
    """Return (the variable that limits oneDNN, its value); the value is "" if there is none."""
    for name in ISA_LIMITS:
        if os.environ.get(name):
            return name, os.environ[name]
    return ISA_LIMITS[0], ""


@tried_once
def trains_in(dtype):
    """Return whether torch has kernels for a floating-point dtype on a CPU (tested with two), and gradients for it."""
    return differentiates(dtype) and works(
        lambda: torch.relu(torch.mm(*[torch.ones(1, 1, dtype=dtype, device="cpu")] * 2))
    )


@tried_once
def differentiates(dtype):
    """Return whether torch computes gradients of a floating-point dtype; torch 1.3 does not for bfloat16."""
    return torch.ones(1, requires_grad=True, device="cpu").to(dtype).requires_grad


@tried_once
def computes_loss(function, dtype):
    """Return whether a loss of two tensors of a floating-point dtype has kernels on a CPU, and its gradient too."""
    values = torch.ones(2, dtype=dtype, device="cpu", requires_grad=True)

    def compute():
        loss = function(values, values.detach())
        loss.grad_fn(torch.ones_like(loss))  # not ``backward``, which the casts wrap

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.0 warns that its kernels of half are slow
        return works(compute)
