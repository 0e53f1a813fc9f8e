"""Gradients of half params on their way to the masters, and what a script keeps of them."""

import pytest
import torch
from helpers import loops
from helpers.nested import same
from helpers.networks import initialize, session_of, settings_at

from ampcompat import amp


class Weights(torch.nn.Module):
    """Params of these shapes; the gradient of the i-th is i times the input, and the second has none."""

    def __init__(self, shapes):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self, factor):
        return sum(factor * index * self.weights[index].double().sum() for index in (0, 2, 3))


@settings_at("O2", "O5")
@pytest.mark.parametrize(
    "shapes", [[(3, 5), (7,), (), (1, 2, 3)], [(3, 3), (7,), (2000, 600), (3, 3)]], ids=["small", "large and small"]
)
def test_masters_get_the_gradients_of_each_pass_and_what_a_script_keeps_of_them_stays(setting, shapes):
    with session_of(setting):
        model = Weights(shapes)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        initialize(setting, model, optimizer, loss_scale=8.0)
        masters = list(amp.master_params(optimizer))

        def gradients(factor):
            loops.backward(model(factor), optimizer)
            return [master.grad for master in masters]

        def expected(factor):
            rights = [torch.full(shape, factor * index, dtype=setting.high) for index, shape in enumerate(shapes)]
            return [rights[0], None, *rights[2:]]

        kept = gradients(1.0)
        assert same(kept, expected(1.0))
        for master in masters:
            master.grad = None
        assert same(gradients(10.0), expected(10.0)) and same(kept, expected(1.0))
        assert same(gradients(7.0), expected(17.0)) and same(kept, expected(1.0))
