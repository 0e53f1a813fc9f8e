"""Models on fake CUDA tensors: every module returns the dtypes of a real CPU run."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
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


class Recommender(torch.nn.Module):
    """Embeddings of users and items, a bag of tags, and a product."""

    def __init__(self):
        super().__init__()
        self.users, self.items = torch.nn.Embedding(16, 8), torch.nn.Embedding(16, 8)
        self.tags = torch.nn.EmbeddingBag(16, 8, mode="sum")
        self.dense = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))

    def forward(self, ids, tags):
        users = self.dense(torch.cat([self.users(ids), self.tags(tags)], dim=1))
        return torch.sigmoid((users * self.items(ids)).sum(1)), F.normalize(users, dim=1)

    inputs = staticmethod(lambda: (torch.zeros(3, dtype=torch.long), torch.zeros(3, 2, dtype=torch.long)))


class Block(torch.nn.Module):
    """A residual block of a diffusion model: group norms, SiLU, convolutions, and the time added in between."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.GroupNorm(2, inputs), torch.nn.GroupNorm(2, outputs)])
        self.first = torch.nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = torch.nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = torch.nn.Conv2d(inputs, outputs, 1)
        self.time = torch.nn.Linear(8, outputs)

    def forward(self, x, time):
        hidden = self.first(F.silu(self.norms[0](x))) + self.time(time).unsqueeze(2).unsqueeze(3)
        return self.skip(x) + self.second(F.silu(self.norms[1](hidden)))


class Diffusion(torch.nn.Module):
    """A UNet with one level, a sinusoidal embedding of the time, and attention at the bottom."""

    def __init__(self):
        super().__init__()
        self.time = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU(), torch.nn.Linear(8, 8))
        self.down, self.middle, self.up = Block(2, 8), Block(8, 8), Block(16, 8)
        self.shrink = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.grow = torch.nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = torch.nn.Conv2d(8, 2, 1)

    def forward(self, x, time):
        frequencies = torch.exp(torch.arange(4, device=x.device) * -1.0)
        angles = time.unsqueeze(1) * frequencies.unsqueeze(0)
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1).to(self.head.weight.dtype))
        kept = self.down(x, time)
        hidden = self.middle(self.shrink(kept), time)
        flat = hidden.flatten(2).transpose(1, 2)
        flat = flat + self.attention(flat, flat, flat)[0]
        hidden = self.grow(flat.transpose(1, 2).reshape(hidden.shape))
        hidden = F.interpolate(hidden, size=kept.shape[2:], mode="nearest")
        return self.head(self.up(torch.cat([kept, hidden], dim=1), time))

    inputs = staticmethod(lambda: (torch.ones(2, 2, 8, 8), torch.ones(2)))


MODELS = (Classifier, Transformer, Recurrent, Recommender, Diffusion)


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
@pytest.mark.parametrize("network", MODELS)
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
