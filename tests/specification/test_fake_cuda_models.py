"""Models on fake CUDA tensors: every module returns the dtypes of a real CPU run."""

import contextlib

import pytest
import torch
from helpers import networks
from helpers.fake_devices import FakeDevice, features_of_cuda, move, needs_fakes, reason_to_leave_out

pytestmark = needs_fakes


@pytest.fixture(autouse=True)
def on_cuda():
    with features_of_cuda():
        yield


class Classifier(torch.nn.Sequential):
    """Convolutions, batch norm, pooling and a linear layer."""

    def __init__(self):
        super().__init__(
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 4),
        )

    inputs = staticmethod(lambda: (torch.ones(2, 3, 8, 8),))


class Transformer(torch.nn.Module):
    """Two encoder layers over token and position embeddings."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(16, 8)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, ids):
        return self.head(self.norm(self.encoder(self.tokens(ids))))

    inputs = staticmethod(lambda: (torch.zeros(2, 5, dtype=torch.long),))


class Recurrent(torch.nn.Module):
    """An LSTM over embeddings."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(16, 8)
        self.lstm = torch.nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(8, 16)

    def forward(self, ids):
        output, (hidden, cell) = self.lstm(self.tokens(ids))
        return self.head(output), hidden, cell

    inputs = staticmethod(lambda: (torch.zeros(2, 5, dtype=torch.long),))


def dtypes_of(value):
    """Return the dtypes of the tensors in nested tuples, in order."""
    if isinstance(value, torch.Tensor):
        return [value.dtype]
    return [dtype for item in value or () for dtype in dtypes_of(item)]


def output_dtypes(model, inputs):
    """Return [(name of a module, dtypes of its output)] in the order of the calls of a forward pass."""
    found, hooks = [], []
    for name, module in model.named_modules():
        hooks.append(
            module.register_forward_hook(
                lambda module, args, output, name=name: found.append((name, dtypes_of(output)))
            )
        )
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    return found


@contextlib.contextmanager
def skipped_where_fakes_cannot():
    try:
        yield
    except Exception as error:
        reason = reason_to_leave_out(error)
        if reason is None:
            raise
        pytest.skip("a layer of this model cannot be called on fake tensors: " + reason)


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("setting", networks.REAL)
@pytest.mark.parametrize("network", [Classifier, Transformer, Recurrent])
def test_every_module_returns_the_dtypes_of_the_cpu_run(setting, network):
    with networks.session_of(setting):
        model = networks.initialize(setting, network())
        expected = output_dtypes(model, network.inputs())
    device = FakeDevice("cuda")
    model, inputs = move(network(), device), [device.put(each) for each in network.inputs()]
    with networks.session_of(setting), device.running(), skipped_where_fakes_cannot():
        model = networks.initialize(setting, model)
        assert {param.device.type for param in model.parameters()} == {"cuda"}
        found = output_dtypes(model, inputs)
    assert found == expected and len(found) >= 4
