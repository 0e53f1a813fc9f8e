"""Test whether the installed torch can train in half on this CPU, and choose the dtypes to use where it cannot.

The test trains a tiny network, because torch gained half kernels one by one over several versions.
"""

import functools
import re

import pytest
import torch

FEW_KERNELS = "this torch lacks kernels in float16 on a CPU"


@functools.lru_cache(maxsize=None)
def trains_in(dtype):
    """Return whether a convolutional network and a layer norm run forward and backward in ``dtype`` on the CPU.

    Torch 2.2 norms no float16, although it trains convolutions in it.
    """
    try:
        torch.nn.LayerNorm(2).to(dtype)(torch.ones(1, 2, dtype=dtype)).sum().backward()
    except RuntimeError:
        return False
    return convolves_in(dtype)


@functools.lru_cache(maxsize=None)
def convolves_in(dtype):
    """Return whether embedding, convolution, linear, relu and tanh run forward and backward in ``dtype`` on the CPU."""
    try:
        letters = torch.nn.Embedding(3, 4).to(dtype)(torch.tensor([[0, 1, 2, 1]]))
        image = torch.nn.Conv2d(1, 1, 3).to(dtype)(letters.unsqueeze(1))
        torch.nn.Linear(2, 1).to(dtype)(torch.relu(torch.nn.functional.max_pool2d(image, 1))).tanh().sum().backward()
    except RuntimeError:
        return False
    return True


@functools.lru_cache(maxsize=None)
def steps_adam_in(dtype):
    """Return whether Adam updates params of ``dtype`` on the CPU; that of torch 2.1 updates no float16."""
    param = torch.nn.Parameter(torch.ones(1, dtype=dtype))
    param.grad = torch.ones_like(param)
    try:
        torch.optim.Adam([param]).step()
    except RuntimeError:
        return False
    return True


def skip_without_norms(level):
    """Skip a test of a model with layer norms where this torch trains others in the level's dtype."""
    if level in ("O2", "O3") and convolves_in(torch.float16) and not trains_in(torch.float16):
        pytest.skip("this torch has no layer norm in float16 on a CPU")


def without_stand_in(test_name, monkeypatch):
    """Let levels mean half in a test; skip one of a float16 level, by its name, where torch lacks kernels for it."""
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)
    if not convolves_in(torch.float16) and {"O1", "O2", "O3"}.intersection(re.split(r"\W", test_name)):
        pytest.skip(FEW_KERNELS)


def dtype_params(*dtypes):
    """Return dtypes as parameters of a test; those that this torch cannot train in are skipped with the reason."""
    reasons = {dtype: f"this torch cannot train in {dtype}" for dtype in dtypes if not trains_in(dtype)}
    marks = {dtype: [pytest.mark.skip(reason=reason)] for dtype, reason in reasons.items()}
    return [pytest.param(dtype, id=str(dtype), marks=marks.get(dtype, [])) for dtype in dtypes]


def stand_in(level="O2"):
    """Return the environment variables with which a level trains here: float32 and float64 where half cannot."""
    if level == "O0" or (convolves_in(torch.float16) and convolves_in(torch.bfloat16)):
        return {}
    return {"AMPCOMPAT_DTYPES": "float32,float64"}
