"""``amp.scaler.scale_check_overflow_python`` and ``axpby_check_overflow_python``."""

import pytest
import torch

from ampcompat.apex.gradient_functions import axpby_check_overflow_python, scale_check_overflow_python


@pytest.mark.parametrize("is_old_order", [False, True])
def test_a_gradient_is_scaled_into_its_master(is_old_order):
    grad, master = torch.tensor([2.0, 4.0], dtype=torch.float64), torch.zeros(2)
    given = (0.5, master) if is_old_order else (master, 0.5)
    assert scale_check_overflow_python(grad, *given) is False
    assert master.tolist() == [1.0, 2.0] and grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_an_overflow_is_reported_and_the_master_left_alone(value):
    grad, master = torch.tensor([1.0, value]), torch.ones(2)
    assert scale_check_overflow_python(grad, master, 0.5, check_overflow=True) is True
    assert scale_check_overflow_python(grad, 0.5, master) is True
    assert axpby_check_overflow_python(grad, master, master, 0.5, 1.0, check_overflow=True) is True
    assert master.tolist() == [1.0, 1.0]


def test_overflows_are_not_looked_for_by_default():
    master = torch.ones(1)
    assert scale_check_overflow_python(torch.tensor([float("inf")]), master, 0.5) is False
    assert master.tolist() == [float("inf")]


def test_a_gradient_with_a_graph_is_scaled_in_place():
    x = torch.tensor([3.0], requires_grad=True)
    grad = torch.autograd.grad(x.pow(2).sum() * 8.0, x, create_graph=True)[0]
    assert scale_check_overflow_python(grad, 1 / 8.0, grad) is False
    grad.sum().backward()
    assert (grad.tolist(), x.grad.tolist()) == ([6.0], [2.0])


def test_two_gradients_are_added_with_factors():
    master = torch.zeros(1)
    assert axpby_check_overflow_python(torch.tensor([4.0]), torch.tensor([3.0]), master, 0.5, 2.0) is False
    assert master.tolist() == [8.0]
