"""Norms of ten million float32 elements on a CPU, where torch's norm uses one float32 accumulator per lane."""

import pytest
import torch

from ampcompat.apex import optimizers
from ampcompat.apex.contrib import clip_grad_norm_
from ampcompat.apex.fp16_utils import FP16_Optimizer
from ampcompat.apex.multi_tensor import foreach_ops, functions
from ampcompat.apex.parallel import LARC

ELEMENTS = 10 * 1000 * 1000 + 3
NORM = ELEMENTS**0.5 / 3


@pytest.fixture(scope="module")
def thirds():
    return torch.full((ELEMENTS,), 1 / 3)


def is_right(norm, right=NORM):
    return abs(float(norm) / right - 1) < 1e-6


def test_norms_of_lists_are_right(thirds):
    found = foreach_ops.norms([thirds, thirds[:7]])
    assert is_right(found[0]) and is_right(found[1], 7**0.5 / 3) and found.dtype == torch.float32
    assert is_right(foreach_ops.norms([thirds], 1)[0], ELEMENTS / 3)
    assert is_right(functions.multi_tensor_l2norm(1, torch.zeros(1, dtype=torch.int32), [[thirds]])[0])


@pytest.mark.parametrize("form", ["half", "transposed", "strided", "float64"])
def test_norms_of_other_large_tensors_are_right(form):
    tensor = torch.linspace(-1, 1, 1 << 20)
    tensor = {
        "half": tensor.half(),
        "transposed": tensor.view(1 << 10, 1 << 10).t(),
        "strided": tensor[::3],
        "float64": tensor.double(),
    }[form]
    found = foreach_ops.norms([tensor])
    assert is_right(found[0], float((tensor.double() ** 2).sum().sqrt()))
    assert found.dtype == (torch.float64 if form == "float64" else torch.float32)
    assert foreach_ops.norms([tensor], float("inf")).item() == 1.0


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_the_norm_of_a_large_tensor_with_inf_or_nan_is_inf_or_nan(bad):
    tensor = torch.zeros(1 << 17)
    tensor[5] = bad
    assert str(abs(foreach_ops.norms([tensor]).item())) == str(bad)


def test_clipping_is_right(thirds):
    param = torch.nn.Parameter(torch.zeros(1))
    param.data, param.grad = thirds, thirds.clone()
    assert is_right(clip_grad_norm_([param], 1.0))
    assert abs(float(param.grad[0]) * ELEMENTS**0.5 - 1) < 1e-5
    optimizer = FP16_Optimizer(torch.optim.SGD([param], lr=0.0), verbose=False)
    (master,) = optimizer.param_groups[0]["params"]
    master.grad = thirds.to(master.dtype)
    assert is_right(optimizer.clip_master_grads(1.0))


def test_trust_ratios_are_right(thirds):
    param = torch.nn.Parameter(thirds.clone())
    param.grad = torch.full_like(param, 0.1)
    optimizer = LARC(torch.optim.SGD([param], lr=1.0), trust_coefficient=1.0, clip=False, eps=0.0)
    optimizer.step()  # the gradient is made as long as the weight, which is of the same direction
    assert float(param.detach().abs().max()) < 1e-6


def test_lamb_adapts_to_the_right_norms(thirds):
    param = torch.nn.Parameter(thirds.clone())
    param.grad = torch.full_like(param, 0.1)
    optimizers.FusedLAMB([param], lr=1.0, weight_decay=0.0, use_nvlamb=True, max_grad_norm=0.0).step()
    assert float(param.detach().abs().max()) < 1e-6
