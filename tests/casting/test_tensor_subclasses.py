"""Tensor subclasses that define their own arithmetic are left to it, where half is emulated too."""

import pytest
import torch
from opened import each_setting, opened

from ampcompat.engine.casting import emulated_half_arithmetic

if not hasattr(torch.Tensor, "_make_wrapper_subclass") or not hasattr(torch.Tensor, "__torch_dispatch__"):
    pytest.skip("this torch has no wrapper subclasses", allow_module_level=True)


class Scaled(torch.Tensor):
    """A matrix of integers times one number, as quantized and float8 tensors are; it can only be multiplied."""

    @staticmethod
    def __new__(cls, whole, scale, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, whole.size(), dtype=dtype)

    def __init__(self, whole, scale, dtype):
        self.whole, self.scale = whole, scale

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default:
            dtype = kwargs["dtype"]
            assert dtype in (torch.float16, torch.bfloat16)  # what autocast may ask for
            return cls(args[0].whole, args[0].scale, dtype)
        assert function is torch.ops.aten.mm.default
        first, second = args
        return (first.whole.float() @ second.whole.float() * (first.scale * second.scale)).to(first.dtype)

    def __repr__(self):
        return "Scaled"


@each_setting
def test_a_product_of_a_subclass_is_its_own(setting, monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, "on")
    if setting.low is torch.float32:
        pytest.skip("autocast never asks for this dtype")
    whole = torch.arange(9).view(3, 3)
    with opened(setting):
        for dtype in (setting.low, setting.high):
            found = torch.mm(Scaled(whole, 0.5, dtype), Scaled(whole.t(), 0.25, dtype))
            assert found.dtype is setting.low
            assert torch.equal(found.double(), whole.double() @ whole.t().double() / 8)


class Logged(torch.Tensor):
    """Notes the dtypes of its products."""

    seen = []

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        if function.__name__ == "mm":
            cls.seen.append(args[0].dtype)
        return super().__torch_function__(function, kinds, args, kwargs or {})


@each_setting
def test_a_subclass_that_handles_functions_sees_its_product_in_the_low_dtype(setting, monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, "on")
    matrix = torch.eye(3, dtype=setting.high).as_subclass(Logged)
    del Logged.seen[:]
    with opened(setting):
        assert type(torch.mm(matrix, matrix)) is Logged
    assert Logged.seen == [setting.low]
