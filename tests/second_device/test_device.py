"""What asks for a device knows xla: subclasses of parameters, random numbers, the list of devices."""

import pytest
import torch
from helpers import processes
from xla import DEVICES, end_step, parameters

import ampcompat
from ampcompat import amp
from ampcompat.errors import AmpError
from ampcompat.support import random_state
from ampcompat.support.torch_compat import devices, features


class Weight(torch.nn.Parameter):
    """A subclass with the values of a plain parameter."""


class Layer(torch.nn.Module):
    """A layer with such a weight."""

    def __init__(self, device):
        super().__init__()
        self.weight = Weight(torch.linspace(-1, 1, 8, device=device).view(4, 2))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("level", ["O2", "O3", "O5"])
def test_a_subclass_of_parameter_is_trained_in_half(level):
    found = []
    for device in DEVICES:
        model = Layer(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=8.0, verbosity=0)
        with amp.scale_loss(model(torch.ones(3, 4, device=device)).float().mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        end_step(device)
        found.append(parameters(model))
        ampcompat.reset()
    torch.testing.assert_close(*found, rtol=0, atol=1e-2)


def test_xla_is_an_available_device_that_autocast_knows():
    assert features.available_devices()[-1] == "xla"
    assert features.read().autocast_devices["xla"] == (torch.float16, torch.bfloat16)


def test_xla_is_waited_for():
    weight = torch.ones(4, device="xla") * 2
    devices.synchronize(weight.device)
    assert weight.tolist() == [2.0] * 4


def test_random_numbers_of_xla_are_drawn_again():
    dropout = torch.nn.Dropout(0.5)
    x = torch.ones(64, device="xla")
    first = dropout(x).tolist()
    with random_state.restored():
        second = dropout(x).tolist()
    assert dropout(x).tolist() == second != first


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O4", "O5"])
def test_a_model_that_is_moved_to_xla_after_initialize_is_an_error_before_the_first_step(level):
    model = torch.nn.Linear(4, 2)  # whose params ``to`` replaces: without amp its optimizer trains nothing, either
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, loss_scale=8.0, verbosity=0)
    loss = model.to("xla")(torch.ones(3, 4, device="xla")).float().mean()
    with pytest.raises(AmpError, match="SGD would train nothing"):
        amp.scale_loss(loss, optimizer)
    ampcompat.reset()


def test_a_script_for_cuda_runs_on_xla(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "torch.cuda.manual_seed(3)\n"
        "weight = torch.nn.Parameter(torch.ones(2, device='cuda'))\n"
        "(weight * 3).sum().backward()\n"
        "torch.cuda.synchronize()\n"
        "print(weight.grad.tolist(), weight.device.type)\n"
    )
    done = processes.python(*processes.RUN, "--device", "xla", script)
    assert done.stdout.splitlines()[-1:] == ["[3.0, 3.0] xla"], done.stderr
