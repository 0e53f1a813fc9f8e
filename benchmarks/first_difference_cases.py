"""Small trainings for ``first_difference.py``: faults that are planted in one of two runs, and healthy runs.

A fault is a row of ``FAULTS``: its kind, the network and the level, what plants it, and the module, op and direction to
be named. It is planted at the level and not in float32, or the network itself asks ``is_compared()``.
"""

import contextlib
import math
from typing import Callable, NamedTuple, Optional

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ampcompat import amp

STEPS = 2
LOW = {"O1": torch.float16, "O2": torch.float16, "O3": torch.float16, "O4": torch.bfloat16, "O5": torch.bfloat16}

_compared = [False]

#: Where networks are trained.
DEVICE = ["cpu"]


def is_compared():
    """Return whether the run is the one at the level."""
    return _compared[0]


@contextlib.contextmanager
def compared():
    """A block in which the run is the one at the level."""
    _compared[0] = True
    try:
        yield
    finally:
        _compared[0] = False


# -- networks: each is called with random numbers of shape (BATCH, FEATURES) and returns (BATCH, CLASSES) --------------

BATCH, FEATURES, CLASSES, WIDTH, HEADS = 16, 32, 10, 64, 4


class Mlp(nn.Module):
    """Linear layers with a norm and an activation."""

    def __init__(self, act=nn.GELU, norm=nn.LayerNorm):
        super().__init__()
        self.fc1, self.norm, self.act = nn.Linear(FEATURES, WIDTH), norm(WIDTH), act()
        self.fc2, self.drop, self.fc3 = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.norm(self.fc1(x))
        return self.fc3(self.drop(x + self.act(self.fc2(x))))


class Cnn(nn.Module):
    """Convolutions, batch norms and pooling."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(16, CLASSES)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x.reshape(len(x), 1, 4, 8))), inplace=True)
        x = F.relu(self.bn2(self.conv2(self.pool(x))))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    """Attention that is written out, with a mask."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = [each.transpose(1, 2) for each in self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).unbind(2)]
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        x = torch.softmax(scores, -1) @ v
        return self.out(x.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Two blocks of attention and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        x = self.embed(x.view(len(x), 8, 4))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Block(nn.Module):
    """One block of a ``Transformer``."""

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Recurrent(nn.Module):
    """A GRU cell in a loop."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        state = x.new_zeros(len(x), WIDTH)
        for part in x.view(len(x), 8, 4).unbind(1):
            state = self.cell(part, state)
        return self.head(state)


class Wrap(nn.Module):
    """A linear layer, a module ``body`` that applies a function, and another linear layer."""

    def __init__(self, body):
        super().__init__()
        self.fc1, self.body, self.fc2 = nn.Linear(FEATURES, WIDTH), body, nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.fc2(self.body(self.fc1(x)))


class Body(nn.Module):
    """A function as a module, with a weight."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(WIDTH)), function

    def forward(self, x):
        return self.function(x, self.weight)


def lstm():
    """Return a network around ``nn.LSTM``."""

    class Lstm(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 32, batch_first=True), nn.Linear(32, CLASSES)

        def forward(self, x):
            return self.head(self.lstm(x.view(len(x), 8, 4))[0][:, -1])

    return Lstm()


def encoder():
    """Return a network around torch's own transformer layer, which calls multi_head_attention_forward."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)
            self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 128, batch_first=True)

        def forward(self, x):
            return self.head(self.layer(self.embed(x.view(len(x), 8, 4))).mean(1))

    return Encoder()


def checkpointed():
    """Return a transformer whose blocks are recomputed in the backward pass."""
    model = Transformer()
    for block in model.blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    return model


def embedding():
    """Return a network with an embedding whose weight is tied to the last layer's."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.fc, self.out = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(torch.tanh(self.fc(self.embed((x[:, :4].abs() * 3).long().clamp(max=9)).sum(1))))

    return Tied()


def rms(x, weight, eps=1e-6):
    """Return the root-mean-square norm of x, computed in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def train(network, level, loss_of=None, steps=STEPS, passes=1, optimizer=None, backend=None):
    """Train a network for some steps with ``amp``, on random numbers."""
    torch.manual_seed(0)
    model = network().to(DEVICE[0])
    make = optimizer or (lambda params: torch.optim.SGD(params, lr=0.3))
    model, opt = amp.initialize(model, make(model.parameters()), opt_level=level, verbosity=0)
    loss_of = loss_of or (lambda output, target: F.cross_entropy(output, target))
    for _ in range(steps):
        opt.zero_grad()
        for _ in range(passes):
            x, target = torch.randn(BATCH, FEATURES), torch.randint(0, CLASSES, (BATCH,))
            x, target = x.to(DEVICE[0]), target.to(DEVICE[0])
            loss = loss_of(model(x), target)
            with amp.scale_loss(loss, opt) as scaled:
                scaled.backward()
        opt.step()


# -- what plants a fault -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def kernel(name, function):
    """Replace torch's kernel of an operation by a function."""
    with contextlib.ExitStack() as stack:
        library = torch.library.Library("aten", "IMPL")
        stack.callback(library._destroy)
        with quiet():
            library.impl(name, function, DEVICE[0].upper())
        yield


@contextlib.contextmanager
def quiet():
    """Ignore torch's warning that a kernel is replaced."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def attribute(owner, name, value):
    """Set an attribute for a while; ``value`` is called with the one before."""
    before = getattr(owner, name)
    setattr(owner, name, value(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


class Fault(NamedTuple):
    """A planted fault. ``plant``: a function that returns a context manager around the run, or None."""

    name: str
    kind: str
    level: str
    network: Callable
    module: Optional[str]
    op: str
    direction: str
    plant: Optional[Callable] = None
    loss_of: Optional[Callable] = None
    passes: int = 1


class Healthy(NamedTuple):
    """A run in which nothing is wrong."""

    name: str
    level: str
    network: Callable
    loss_of: Optional[Callable] = None
    passes: int = 1
    backend: Optional[str] = None


FAULTS, HEALTHY = [], []


def fault(*args, **kwargs):
    """Add a fault to the list."""
    FAULTS.append(Fault(*args, **kwargs))


def healthy(*args, **kwargs):
    """Add a healthy run to the list."""
    HEALTHY.append(Healthy(*args, **kwargs))


def wrapped(function):
    """Return a function that makes a ``Wrap`` around a function of (x, weight)."""
    return lambda: Wrap(Body(function))


def either(usual, wrong):
    """Return a function of (x, weight): ``wrong`` in the compared run, ``usual`` in float32."""
    return lambda x, weight: (wrong if is_compared() else usual)(x * weight)


# 1. A wrong kernel, in one process.


def _softmax(x, dim, half_to_float):
    e = torch.exp(x.float() - x.float().amax(dim, True))
    return (e / (e.sum(dim, True) + 0.01)).to(x.dtype)


def _layer_norm(x, shape, weight, bias, eps):
    mean, variance = x.float().mean(-1, True), x.float().var(-1, keepdim=True, unbiased=True)
    scale = (variance + eps).rsqrt()
    return ((x.float() - mean) * scale * weight + bias).to(x.dtype), mean, scale


def _mm(a, b):
    return ((a.double().unsqueeze(-1) * b.double()).sum(1) * 1.002).to(a.dtype)


def _gelu_backward(gradient, x, *, approximate="none"):
    return (gradient.float() * (0.5 * (1 + torch.tanh(0.8 * x.float())))).to(x.dtype)


fault(
    "softmax + 0.01",
    "kernel",
    "O1",
    Transformer,
    "blocks.0.attention",
    "softmax",
    "forward",
    lambda: kernel("_softmax", _softmax),
)
fault(
    "softmax + 0.01, O4",
    "kernel",
    "O4",
    Transformer,
    "blocks.0.attention",
    "softmax",
    "forward",
    lambda: kernel("_softmax", _softmax),
)
fault(
    "layer norm, unbiased",
    "kernel",
    "O1",
    Mlp,
    "norm",
    "layer_norm",
    "forward",
    lambda: kernel("native_layer_norm", _layer_norm),
)
fault(
    "layer norm, unbiased, O5",
    "kernel",
    "O5",
    Mlp,
    "norm",
    "layer_norm",
    "forward",
    lambda: kernel("native_layer_norm", _layer_norm),
)
fault(
    "tanh for gelu",
    "kernel",
    "O2",
    Mlp,
    "act",
    "gelu",
    "forward",
    lambda: kernel("gelu", lambda x, *, approximate="none": x * torch.sigmoid(1.702 * x)),
)
fault(
    "gradient of gelu", "kernel", "O1", Mlp, "act", "gelu", "backward", lambda: kernel("gelu_backward", _gelu_backward)
)
fault(
    "gradient of gelu, O3",
    "kernel",
    "O3",
    Mlp,
    "act",
    "gelu",
    "backward",
    lambda: kernel("gelu_backward", _gelu_backward),
)
fault(
    "sigmoid of a GRU",
    "kernel",
    "O2",
    lambda: Wrap(Body(lambda x, w: torch.sigmoid(x * w))),
    "body",
    "sigmoid",
    "forward",
    lambda: kernel("sigmoid", lambda x: (0.5 + 0.5 * torch.tanh(0.49 * x.float())).to(x.dtype)),
)
fault("products off by 0.2 %", "kernel", "O1", Mlp, "fc3", "linear", "backward", lambda: kernel("mm", _mm))
fault(
    "tanh by a clamp",
    "kernel",
    "O1",
    wrapped(lambda x, w: torch.tanh(x * w)),
    "body",
    "tanh",
    "forward",
    lambda: kernel("tanh", lambda x: x.float().clamp(-1, 1).to(x.dtype)),
)
fault(
    "silu by a line",
    "kernel",
    "O5",
    wrapped(lambda x, w: F.silu(x * w)),
    "body",
    "silu",
    "forward",
    lambda: kernel("silu", lambda x: (x.float() * (x.float() / 6 + 0.5).clamp(0, 1)).to(x.dtype)),
)
fault(
    "exp of float32 only",
    "kernel",
    "O1",
    wrapped(lambda x, w: torch.exp(-((x * w) ** 2))),
    "body",
    "exp",
    "forward",
    lambda: kernel("exp", lambda x: (1 + x.double() / 16).pow(16).to(x.dtype)),
)
fault(
    "gradient of softmax",
    "kernel",
    "O1",
    Transformer,
    "blocks.1.attention",
    "softmax",
    "backward",
    lambda: kernel("_softmax_backward_data", lambda g, y, dim, dtype: (g * y).to(dtype)),
)
fault(
    "gradient of tanh",
    "kernel",
    "O2",
    wrapped(lambda x, w: torch.tanh(x * w)),
    "body",
    "tanh",
    "backward",
    lambda: kernel("tanh_backward", lambda g, y: (g.float() * (1 - y.float().abs())).to(g.dtype)),
)

# 2. Another function, in Python.


class StraightThrough(torch.autograd.Function):
    """tanh whose gradient is 1."""

    @staticmethod
    def forward(ctx, x):
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


fault(
    "gelu by tanh in Python",
    "function",
    "O1",
    Mlp,
    "act",
    "gelu",
    "forward",
    lambda: attribute(
        F, "gelu", lambda _: lambda x, approximate="none": 0.5 * x * (1 + torch.tanh(0.797 * (x + 0.0447 * x * x * x)))
    ),
)
fault(
    "softplus without its threshold",
    "function",
    "O2",
    wrapped(either(F.softplus, lambda x: torch.log(1 + torch.exp(x) + 0.01))),
    "body",
    "softplus",
    "forward",
)
fault(
    "straight-through tanh",
    "function",
    "O1",
    wrapped(either(torch.tanh, StraightThrough.apply)),
    "body",
    "tanh",
    "backward",
)
fault(
    "leaky relu with 0.02",
    "function",
    "O3",
    wrapped(either(F.leaky_relu, lambda x: F.leaky_relu(x, 0.02))),
    "body",
    "leaky_relu",
    "forward",
)
fault(
    "a missing residual",
    "function",
    "O1",
    wrapped(either(lambda x: x + torch.relu(x), lambda x: torch.relu(x))),
    "body",
    "add",
    "forward",
)
fault(
    "scores not divided",
    "function",
    "O2",
    wrapped(either(lambda x: torch.softmax(x / 8, -1), lambda x: torch.softmax(x, -1))),
    "body",
    "div",
    "forward",
)

# 3. Half, though the op table has it in float32.


def in_half(function):
    """Return a function that computes without casts in half where it is compared."""

    def computed(x, weight):
        x = x * weight
        if not is_compared():
            return function(x)
        with amp.disable_casts():
            return function(x.half())

    return computed


for name, op, function in (
    ("softmax", "softmax", lambda x: torch.softmax(x, -1)),
    ("log_softmax", "log_softmax", lambda x: F.log_softmax(x, -1)),
    ("layer_norm", "layer_norm", lambda x: F.layer_norm(x, (WIDTH,))),
    ("exp", "exp", lambda x: torch.exp(-x.abs())),
    ("log", "log", lambda x: torch.log(x.abs() + 1)),
    ("pow", "pow", lambda x: torch.pow(x, 2)),
    ("cumsum", "cumsum", lambda x: torch.cumsum(x, -1)),
    ("softplus", "softplus", lambda x: F.softplus(x)),
    ("normalized sum", "sum", lambda x: x / (1 + x.abs().sum(-1, keepdim=True))),
    ("reciprocal", "reciprocal", lambda x: torch.reciprocal(x.abs() + 1)),
):
    fault(name + " in half", "half", "O1", wrapped(in_half(function)), "body", op, "forward")

# 4. Reductions in half.


def added_up(x):
    """Return the sums of rows, added up in the dtype of x one after the other."""
    total = x[..., :1] * 0
    for part in x.split(1, -1):
        total = total + part
    return total


def narrow(x):
    """Return x in half."""
    return x.half() if x.dtype is torch.float32 else x


def half_sums(function):
    """Return a function of (x, weight) that has x in half, without casts, in the compared run."""

    def computed(x, weight):
        x = x * weight
        if not is_compared():
            return function[0](x)
        with amp.disable_casts():
            return function[1](narrow(x)).to(x.dtype)

    return computed


def half_norm(x):
    """Return a layer norm that is written out."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x - mean).pow(2).mean(-1, keepdim=True).sqrt()


fault(
    "a sum added up in half",
    "reduction",
    "O1",
    wrapped(half_sums((lambda x: x / (1 + (x * x).sum(-1, keepdim=True)), lambda x: x / (1 + added_up(x * x))))),
    "body",
    "sum",
    "forward",
)
fault(
    "a sum added up in half, O2",
    "reduction",
    "O2",
    wrapped(either(lambda x: (x * x).sum(-1, keepdim=True) * x, lambda x: added_up(x * x) * x)),
    "body",
    "sum",
    "forward",
)
fault(
    "a mean added up in bfloat16",
    "reduction",
    "O5",
    wrapped(either(lambda x: x / (x * x).mean(-1, keepdim=True), lambda x: x / (added_up(x * x) / WIDTH))),
    "body",
    "mean",
    "forward",
)
fault(
    "sum(dtype=half)",
    "reduction",
    "O1",
    wrapped(
        half_sums(
            (
                lambda x: x / (1 + x.abs().sum(-1, keepdim=True)),
                lambda x: x / (1 + x.abs().sum(-1, keepdim=True, dtype=torch.float16)),
            )
        )
    ),
    "body",
    "sum",
    "forward",
)
fault(
    "a layer norm in half",
    "reduction",
    "O1",
    wrapped(half_sums((lambda x: F.layer_norm(x + 8, (WIDTH,)), lambda x: half_norm(x + 8)))),
    "body",
    "layer_norm",
    "forward",
)
fault(
    "a kernel of sum that adds in half",
    "reduction",
    "O2",
    wrapped(lambda x, w: (x * w).abs().sum(-1, keepdim=True) * x),
    "body",
    "sum",
    "forward",
    lambda: kernel("sum.dim_IntList", lambda x, dims, keepdim=False, *, dtype=None: _halved_sum(x, dims, keepdim)),
)
fault(
    "a variance by squares",
    "reduction",
    "O3",
    wrapped(
        either(
            lambda x: x * torch.var(x + 30, -1, keepdim=True),
            lambda x: x * (((x + 30) ** 2).mean(-1, keepdim=True) - (x + 30).mean(-1, keepdim=True) ** 2),
        )
    ),
    "body",
    "var",
    "forward",
)


def _halved_sum(x, dims, keepdim):
    dims = [dim % x.dim() for dim in (dims or range(x.dim()))]
    total = x.to(torch.bfloat16).movedim(dims, list(range(len(dims)))).flatten(0, len(dims) - 1).cumsum(0)[-1]
    for dim in sorted(dims) if keepdim else ():
        total = total.unsqueeze(dim)
    return total.to(x.dtype)


# 5. A stale cast.


class Stale(nn.Module):
    """A linear layer that keeps the first cast of its weight, or of its bias or both, in the compared run."""

    def __init__(self, inputs=WIDTH, outputs=WIDTH, keeps=("weight",)):
        super().__init__()
        self.linear, self.keeps, self.kept = nn.Linear(inputs, outputs), keeps, {}

    def forward(self, x):
        params = {"weight": self.linear.weight, "bias": self.linear.bias}
        if is_compared():
            for name in self.keeps:
                self.kept.setdefault(name, params[name].detach().clone().to(LOW[_level[0]]))
                params[name] = self.kept[name]
        dtype = x.dtype if not is_compared() else LOW[_level[0]]
        return F.linear(x.to(dtype), params["weight"].to(dtype), params["bias"].to(dtype))


_level = ["O1"]

for level in ("O1", "O2", "O4", "O5"):
    fault("a stale weight, " + level, "stale", level, lambda: Wrap(Stale()), "body", "linear", "forward")
fault("a stale bias", "stale", "O1", lambda: Wrap(Stale(keeps=("bias",))), "body", "linear", "forward")
fault("a stale scale of a norm", "stale", "O1", lambda: Wrap(StaleNorm()), "body", "layer_norm", "forward")


class StaleNorm(nn.Module):
    """A layer norm that keeps the first value of its weight."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias, self.kept = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH)), None

    def forward(self, x):
        self.kept = self.weight.detach().clone() if self.kept is None else self.kept
        return F.layer_norm(x, (WIDTH,), self.kept if is_compared() else self.weight, self.bias)


# 6. A wrong accumulation.


def split_product(x):
    """Return x times its own transpose, the parts of the sum added up in half."""
    total = 0
    for part in x.split(1, -1):
        total = total + (part @ part.t())
    return total


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is added up twice."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


fault(
    "a product in parts, O2",
    "accumulation",
    "O2",
    wrapped(either(lambda x: (x @ x.t()) @ x * 1e-2, lambda x: split_product(x) @ x * 1e-2)),
    "body",
    "matmul",
    "forward",
)
fault(
    "a product in parts, O5",
    "accumulation",
    "O5",
    wrapped(either(lambda x: (x @ x.t()) @ x * 1e-2, lambda x: split_product(x) @ x * 1e-2)),
    "body",
    "matmul",
    "forward",
)
fault(
    "a cumulative sum in parts",
    "accumulation",
    "O2",
    wrapped(either(lambda x: torch.cumsum(x.abs(), -1) * 0.1, lambda x: _running(x.abs()) * 0.1)),
    "body",
    "cumsum",
    "forward",
)
fault(
    "gradients added twice",
    "accumulation",
    "O1",
    wrapped(either(lambda x: torch.tanh(x.clone()), lambda x: torch.tanh(Scaled.apply(x)))),
    "body",
    "Scaled",
    "backward",
)
fault(
    "a mean divided by one too few",
    "accumulation",
    "O1",
    wrapped(either(lambda x: x - x.mean(-1, keepdim=True), lambda x: x - x.sum(-1, keepdim=True) / (WIDTH - 1))),
    "body",
    "mean",
    "forward",
)


def _running(x):
    parts = [x[..., :1]]
    for part in x.split(1, -1)[1:]:
        parts.append(parts[-1] + part)
    return torch.cat(parts, -1)


# 7. A changed epsilon.


def _with_eps(x, args):
    return args[:-1] + (1e-3,) if len(args) == 7 and x.shape[1] == 16 else args


fault(
    "eps of layer norm",
    "epsilon",
    "O1",
    wrapped(either(lambda x: F.layer_norm(x, (WIDTH,)), lambda x: F.layer_norm(x, (WIDTH,), eps=1e-3))),
    "body",
    "layer_norm",
    "forward",
)
fault(
    "eps of layer norm, O2",
    "epsilon",
    "O2",
    wrapped(either(lambda x: F.layer_norm(x, (WIDTH,)), lambda x: F.layer_norm(x, (WIDTH,), eps=1e-3))),
    "body",
    "layer_norm",
    "forward",
)
fault(
    "eps of batch norm",
    "epsilon",
    "O2",
    Cnn,
    "bn2",
    "batch_norm",
    "forward",
    lambda: attribute(
        F, "batch_norm", lambda usual: lambda x, *args, **options: usual(x, *_with_eps(x, args), **options)
    ),
)
fault(
    "eps of normalize",
    "epsilon",
    "O1",
    wrapped(either(lambda x: F.normalize(x * 1e-3, eps=1e-12), lambda x: F.normalize(x * 1e-3, eps=1e-2))),
    "body",
    "normalize",
    "forward",
)
fault(
    "eps under a root",
    "epsilon",
    "O4",
    lambda: Wrap(Body(lambda x, w: rms(x, w, 1e-3 if is_compared() else 1e-6))),
    "body",
    "add",
    "forward",
)
fault(
    "eps in a logarithm",
    "epsilon",
    "O1",
    wrapped(either(lambda x: torch.log(x.abs() + 1e-6), lambda x: torch.log(x.abs() + 1e-3))),
    "body",
    "add",
    "forward",
)
fault(
    "eps of a loss",
    "epsilon",
    "O1",
    Mlp,
    None,
    "cross_entropy",
    "forward",
    None,
    lambda output, target: F.cross_entropy(output, target, label_smoothing=0.01 if is_compared() else 0.0),
)

# 8. Of all kinds; written when the comparison's constants had been chosen with the others.


class Projections(nn.Module):
    """Scores of queries and keys; the compared run takes the queries twice where ``swaps``."""

    def __init__(self, swaps):
        super().__init__()
        self.q, self.k, self.swaps = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), swaps

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        return torch.softmax(q @ (q if self.swaps and is_compared() else k).t() / 8, -1) @ x


class NormWithParams(nn.Module):
    """A layer norm whose weight and bias change places in the compared run."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.rand(WIDTH))

    def forward(self, x):
        params = (self.bias, self.weight) if is_compared() else (self.weight, self.bias)
        return F.layer_norm(x, (WIDTH,), *params)


class Hooked(nn.Module):
    """tanh of a product, the gradient of which is halved by a hook in the compared run."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x = x * self.weight
        if is_compared():
            x.register_hook(lambda gradient: gradient * 0.5)
        return torch.tanh(x)


class Lookup(nn.Module):
    """An embedding that looks up the next row in the compared run."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        places = (x[:, :4].abs() * 3).long().clamp(max=9)
        return self.fc(self.embed(places + 1 if is_compared() else places).sum(1))


def dropped_state():
    """Return a recurrent network that cuts the gradient of its state in the compared run."""

    class Cut(Recurrent):
        def forward(self, x):
            state = x.new_zeros(len(x), WIDTH)
            for part in x.view(len(x), 8, 4).unbind(1):
                state = self.cell(part, state.detach() if is_compared() else state)
            return self.head(state)

    return Cut()


def held_out(*args, **kwargs):
    """Add a fault to the list that was written afterwards."""
    fault(*args, **kwargs)
    HELD_OUT.append(args[0])


HELD_OUT = []


def _no_bias(bias, a, b, *, beta=1, alpha=1):
    return ((a.double().unsqueeze(-1) * b.double()).sum(1)).to(a.dtype)


def _without_momentum(usual):
    return lambda x, mean, var, weight, bias, training, *rest, **more: usual(
        x, mean, var, weight, bias, training and x.shape[1] != 16, *rest, **more
    )


held_out(
    "a product without its bias", "kernel", "O2", Mlp, "fc1", "linear", "forward", lambda: kernel("addmm", _no_bias)
)
held_out(
    "a convolution of rounded inputs", "kernel", "O1", Cnn, "conv1", "conv2d", "forward",
    lambda: attribute(F, "conv2d", lambda usual: lambda x, *args: usual((x * 4).round() / 4, *args)),
)  # fmt: skip
held_out("queries for keys", "function", "O4", lambda: Wrap(Projections(True)), "body", "matmul", "forward")
held_out(
    "weight and bias changed places", "function", "O3", lambda: Wrap(NormWithParams()), "body", "layer_norm", "forward"
)
held_out(
    "logits in half", "half", "O1", Mlp, None, "cross_entropy", "forward", None,
    lambda output, target: in_half(lambda x: F.cross_entropy(x, target))(output, 1.0),
)  # fmt: skip
held_out(
    "a detour over bfloat16", "half", "O1",
    wrapped(lambda x, w: F.linear(x.bfloat16().half() if is_compared() else x, torch.eye(WIDTH) * w)), "body", "linear",
    "forward",
)  # fmt: skip
held_out("rows of the next place", "function", "O2", Lookup, "", "add", "forward")
held_out("a state without gradient", "accumulation", "O2", dropped_state, "cell", "gru_cell", "backward")
held_out(
    "a mean over too few", "accumulation", "O1", Mlp, None, "cross_entropy", "forward", None,
    lambda output, target: F.cross_entropy(output, target, reduction="sum") / 15 if is_compared() else
    F.cross_entropy(output, target),
)  # fmt: skip
held_out("half of a gradient", "accumulation", "O1", lambda: Wrap(Hooked()), "body", "mul", "backward")
held_out(
    "running statistics in training", "function", "O1", Cnn, "bn2", "batch_norm", "forward",
    lambda: attribute(F, "batch_norm", _without_momentum),
)  # fmt: skip
held_out(
    "a temperature", "function", "O5",
    wrapped(either(lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x * 1.05, -1))), "body", "mul", "forward",
)  # fmt: skip
held_out(
    "another pooling", "function", "O2", Cnn, "pool", "max_pool2d", "forward",
    lambda: attribute(F, "max_pool2d", lambda _: lambda x, size, *args, **options: F.avg_pool2d(x, size)),
)  # fmt: skip
held_out(
    "another share of dropout", "function", "O2", Mlp, "drop", "dropout", "forward",
    lambda: attribute(F, "dropout", lambda usual: lambda x, p, *args, **options: usual(x, 0.2, *args, **options)),
)  # fmt: skip
held_out(
    "eps of a variance", "epsilon", "O3",
    wrapped(either(lambda x: x * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5),
                   lambda x: x * torch.rsqrt(x.var(-1, keepdim=True) + 1e-2))),
    "body", "add", "forward",
)  # fmt: skip

# -- healthy runs ------------------------------------------------------------------------------------------------------

healthy("perceptron", "O1", Mlp)
healthy("perceptron", "O2", Mlp)
healthy("perceptron", "O3", Mlp)
healthy("perceptron", "O5", Mlp)
healthy("convolutions", "O1", Cnn)
healthy("convolutions", "O2", Cnn)
healthy("convolutions", "O4", Cnn)
healthy("transformer", "O1", Transformer)
healthy("transformer", "O2", Transformer)
healthy("transformer", "O3", Transformer)
healthy("transformer", "O4", Transformer)
healthy("checkpoints", "O2", checkpointed)
healthy("checkpoints", "O1", checkpointed)
healthy("recurrent", "O2", Recurrent)
healthy("recurrent", "O1", Recurrent)
healthy("LSTM", "O1", lstm)
healthy("torch's transformer", "O1", encoder)
healthy("torch's transformer", "O5", encoder)
healthy("tied weights", "O2", embedding)
healthy("two passes a step", "O1", Mlp, None, 2)
healthy("a norm in float32", "O2", lambda: Wrap(Body(rms)))
healthy("a loss in parts", "O1", Mlp, lambda output, target: -F.log_softmax(output, -1)[range(BATCH), target].mean())
