"""A custom autograd.Function trains at O1 and O4 as it did under Apex: its backward is cast as its forward pass was."""

import pytest
import torch
from helpers import loops

import ampcompat
from ampcompat import amp


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(x)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return Product.apply(x, self.weight)


@pytest.mark.parametrize("level", ["O1", "O4"])
def test_half_gradients_meet_float32_weights_in_backward(level, backend):
    torch.manual_seed(0)
    model, x = Layer(), torch.randn(5, 4, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampcompat.session(backend=backend):
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, loss_scale=8.0)
        try:
            loss = model(x).float().pow(2).sum()
        except RuntimeError as error:
            pytest.skip(f"this torch lacks half kernels on the CPU: {error}")
        loops.backward(loss, optimizer)
        gradient, dtype = model.weight.grad.clone(), model.weight.dtype
    a, b = x.detach().double(), model.weight.detach().double()
    wanted = 2 * a.mm(b.t()).t().mm(a)
    assert gradient.dtype is dtype
    assert torch.allclose(gradient.double(), wanted, atol=0.03 * float(wanted.abs().max()))
