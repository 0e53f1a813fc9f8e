"""Weight norm under Apex's names: the formula, nested names, removal, every level."""

import pytest
import torch

from ampcompat.apex.reparameterization import apply_weight_norm, remove_weight_norm
from ampcompat.errors import AmpValueError

#: torch 2.0 to 2.4 warn of it; what Apex's names stand for has the params of the old one.
pytestmark = pytest.mark.filterwarnings("ignore:torch.nn.utils.weight_norm is deprecated:UserWarning")


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def names(module):
    return sorted(name for name, _ in module.named_parameters())


def test_without_a_name_all_matrices_get_it_and_lose_it_again():
    model, x = network(), torch.randn(4, 6)
    before, right = names(model), network()(x)
    assert apply_weight_norm(model) is model
    assert {"0.weight_g", "0.weight_v", "3.weight_g", "3.weight_v"} < set(names(model))
    assert "1.weight" in names(model) and "0.weight" not in names(model)
    assert torch.allclose(model(x), right, atol=1e-6)
    assert remove_weight_norm(model) is model and names(model) == before
    assert torch.allclose(model(x), right, atol=1e-6)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_the_weight_is_its_length_times_its_direction(dim):
    layer = torch.nn.Linear(3, 2).double()
    apply_weight_norm(layer, "weight", dim)
    with torch.no_grad():
        layer.weight_g.mul_(2.0)
    layer(torch.ones(1, 3, dtype=torch.float64))
    v = layer.weight_v.detach()
    length = (v**2).sum().sqrt() if dim is None else (v**2).sum(1 - dim, keepdim=True).sqrt()
    assert torch.allclose(layer.weight, layer.weight_g * v / length, rtol=1e-12)


def test_one_param_of_a_module_within():
    model = network()
    apply_weight_norm(model, "3.weight")
    assert "3.weight_g" in names(model) and "0.weight" in names(model)
    remove_weight_norm(model, "3.weight")
    assert names(model) == names(network())


@pytest.mark.parametrize("name", ["0.wait", "7.weight", "weight"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(AmpValueError, match=name):
        apply_weight_norm(network(), name)
    with pytest.raises(AmpValueError, match=name):
        remove_weight_norm(network(), name)
