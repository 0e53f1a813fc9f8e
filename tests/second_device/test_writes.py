"""What a script writes with foreach functions, which move no version counters on xla."""

import gc

import pytest
import torch
from xla import DEVICES, end_step, parameters

import ampcompat
from ampcompat import amp


def train(device, level, write, optimizer=torch.optim.SGD, **options):
    """Return the weights and masters of four steps, with ``write(model, optimizer)`` before each step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).to(device)
    optimizer = optimizer(model.parameters(), lr=0.25, **options)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=8.0, verbosity=0)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.linspace(-1, 1, 12, device=device).view(3, 4)).float().pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        write(model, optimizer)
        optimizer.step()
        end_step(device)
    found = parameters(model), torch.cat([each.detach().cpu().flatten() for each in amp.master_params(optimizer)])
    ampcompat.reset()
    return found


def weights_are_scaled(model, optimizer):
    with torch.no_grad():
        torch._foreach_mul_(list(model.parameters()), 0.5)


def masters_are_scaled(model, optimizer):
    with torch.no_grad():
        torch._foreach_mul_(list(amp.master_params(optimizer)), 0.5)


def gradients_are_scaled(model, optimizer):
    torch._foreach_mul_([param.grad for param in model.parameters()], 0.5)


def gradients_of_masters_are_scaled(model, optimizer):
    torch._foreach_mul_([master.grad for master in amp.master_params(optimizer)], 0.5)


WRITES = [weights_are_scaled, masters_are_scaled, gradients_are_scaled, gradients_of_masters_are_scaled]


@pytest.mark.parametrize("write", WRITES)
def test_foreach_writes_count_as_on_a_cpu(level, write):
    (weights, masters), (expected_weights, expected_masters) = [train(device, level, write) for device in DEVICES]
    tolerance = 2e-2 if level in ("O4", "O5") else 2e-3
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=tolerance)
    torch.testing.assert_close(masters, expected_masters, rtol=0, atol=tolerance)


def test_gradients_that_foreach_functions_set_to_zero_are_cleared(level):
    def clear(model, optimizer):
        optimizer.zero_grad(set_to_none=False)

    first, last = [train("xla", level, clear, foreach=True), train("cpu", level, clear, foreach=True)]
    torch.testing.assert_close(first[0], last[0], rtol=0, atol=0)


def test_foreach_functions_are_torchs_own_again_after_the_session():
    before = torch._foreach_mul_
    model = torch.nn.Linear(2, 2).to("xla")
    amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O2", verbosity=0)
    assert torch._foreach_mul_ is not before
    ampcompat.reset()
    assert torch._foreach_mul_ is before


def test_no_object_stays_of_models_that_are_gone(level):
    def objects_after(folds):
        for _ in range(folds):
            model = torch.nn.Linear(2, 2).to("xla")
            amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level=level, verbosity=0)
        del model
        gc.collect(), gc.collect()
        return len(gc.get_objects())

    objects_after(3)
    before = objects_after(5)
    assert objects_after(5) - before <= 5


def test_foreach_functions_stay_torchs_own_where_they_move_counters():
    before = torch._foreach_mul_
    model = torch.nn.Linear(2, 2)
    amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), opt_level="O2", verbosity=0)
    assert torch._foreach_mul_ is before
    ampcompat.reset()
