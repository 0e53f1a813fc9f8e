"""MMCV's functions that convert models and tensors: norms of a half model, casts around a function, of tensors."""

import copy

import pytest
import torch
from helpers import half_kernels
from helpers.precision import HIGH, LOW

from ampcompat import mmcv


class SeenNorm(torch.nn.GroupNorm):
    """Notes the dtype that it computes in."""

    seen = []

    def forward(self, x):
        self.seen.append(x.dtype)
        return super().forward(x)


class Norms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.group = SeenNorm(2, 4)
        self.batch = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return self.batch(self.group(self.linear(x)))


@pytest.mark.skipif(not half_kernels.trains_in(LOW), reason="this torch has no arithmetic in the low dtype")
def test_norms_of_a_half_model_compute_in_float32_between_half_tensors():
    torch.manual_seed(0)
    model, x = Norms().to(HIGH), torch.randn(6, 4, dtype=HIGH)
    expected = model(x)
    half = mmcv.patch_norm_fp32(copy.deepcopy(model).to(LOW))
    assert [half.linear.weight.dtype, half.group.weight.dtype, half.batch.running_mean.dtype] == [LOW, HIGH, HIGH]
    del SeenNorm.seen[:]
    out = copy.deepcopy(half)(x.to(LOW))
    assert out.dtype is LOW and torch.allclose(out.to(HIGH), expected, atol=2e-2)
    assert half.group(x.to(LOW)).dtype is LOW and SeenNorm.seen == [HIGH, HIGH]
    out.sum().backward()


def test_a_function_may_be_patched_by_hand():
    double = mmcv.patch_forward_method(lambda x, y=None: (x * 2, y), torch.float32, torch.float64)
    x, y = double(torch.ones(1), y=torch.ones(1, dtype=torch.int64))
    assert x.dtype is torch.float32 and y.dtype is torch.int64
    x, _ = mmcv.patch_forward_method(lambda x: (x * 2, 3), torch.float32, torch.float64, convert_output=False)(x)
    assert x.dtype is torch.float64


def test_tensors_of_one_dtype_are_cast_to_another():
    value = {"a": [torch.ones(1), torch.ones(1, dtype=torch.float64)], "b": torch.nn.Linear(1, 1), "c": "text"}
    cast = mmcv.cast_tensor_type(value, torch.float32, torch.int64)
    assert [tensor.dtype for tensor in cast["a"]] == [torch.int64, torch.float64]
    assert cast["b"] is value["b"] and cast["b"].weight.dtype is torch.float32
