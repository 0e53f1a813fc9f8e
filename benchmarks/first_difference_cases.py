"""Small trainings for ``first_difference.py``: faults that are planted in one of two runs, and healthy runs.

A fault is a row of ``FAULTS``: its name, kind and level, the network, the module, op and direction to be named, and
what plants it. It is planted at the level and not in float32, or the network itself asks ``is_compared()``.
"""

import contextlib
import math
import warnings
from typing import Callable, NamedTuple, Optional

import torch
from case_trainings import Module, late
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ampcompat import amp

STEPS = 2
cross_entropy = late(F, "cross_entropy")
LOW = {"O1": torch.float16, "O2": torch.float16, "O3": torch.float16, "O4": torch.bfloat16, "O5": torch.bfloat16}

#: The level of the run, or None in the run in float32.
_level = [None]

#: Where networks are trained.
DEVICE = ["cpu"]


def is_compared():
    """Return whether the run is the one at the level."""
    return _level[0] is not None


@contextlib.contextmanager
def compared(level):
    """A block in which the run is the one at the level."""
    _level[0] = level
    try:
        yield
    finally:
        _level[0] = None


# -- networks: each is called with random numbers of shape (BATCH, FEATURES) and returns (BATCH, CLASSES) --------------

BATCH, FEATURES, CLASSES, WIDTH, HEADS = 16, 32, 10, 64, 4


def linear(inputs=WIDTH, outputs=WIDTH):
    """Return a linear layer."""
    return nn.Linear(inputs, outputs)


def parts(x):
    """Return the features as a sequence of eight."""
    return x.view(len(x), 8, 4)


def mlp():
    """Return linear layers with a norm and an activation."""

    def forward(self, x):
        x = self.norm(self.fc1(x))
        return self.fc3(self.drop(x + self.act(self.fc2(x))))

    return Module(
        forward, fc1=linear(FEATURES), norm=nn.LayerNorm(WIDTH), act=nn.GELU(), fc2=linear(),
        drop=nn.Dropout(0.1), fc3=linear(WIDTH, CLASSES),
    )  # fmt: skip


def cnn():
    """Return convolutions, batch norms and pooling."""

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x.reshape(len(x), 1, 4, 8))), inplace=True)
        x = F.relu(self.bn2(self.conv2(self.pool(x))))
        return self.head(x.mean((2, 3)))

    return Module(
        forward, conv1=nn.Conv2d(1, 8, 3, padding=1), bn1=nn.BatchNorm2d(8), conv2=nn.Conv2d(8, 16, 3, padding=1),
        bn2=nn.BatchNorm2d(16), pool=nn.MaxPool2d(2), head=linear(16, CLASSES),
    )  # fmt: skip


def attention():
    """Return attention that is written out, with a mask."""

    def forward(self, x):
        q, k, v = [part.transpose(1, 2) for part in self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).unbind(2)]
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        x = torch.softmax(scores, -1) @ v
        return self.out(x.transpose(1, 2).flatten(2))

    return Module(forward, qkv=linear(WIDTH, 3 * WIDTH), out=linear())


def block():
    """Return a block of attention and a feed-forward network."""

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    return Module(
        forward, norm1=nn.LayerNorm(WIDTH), attention=attention(), norm2=nn.LayerNorm(WIDTH),
        up=linear(WIDTH, 2 * WIDTH), down=linear(2 * WIDTH, WIDTH),
    )  # fmt: skip


def transformer():
    """Return a network of two blocks."""

    def forward(self, x):
        x = self.embed(parts(x))
        for inner in self.blocks:
            x = inner(x)
        return self.head(x.mean(1))

    return Module(forward, embed=linear(4), head=linear(WIDTH, CLASSES), blocks=nn.ModuleList([block(), block()]))


def checkpointed():
    """Return a transformer whose blocks are recomputed in the backward pass."""
    model = transformer()
    for inner in model.blocks:
        forward = inner.forward
        inner.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    return model


def recurrent(cut=False):
    """Return a GRU cell in a loop, which may cut the gradient of its state in the compared run."""

    def forward(self, x):
        state = x.new_zeros(len(x), WIDTH)
        for part in parts(x).unbind(1):
            state = self.cell(part, state.detach() if cut and is_compared() else state)
        return self.head(state)

    return Module(forward, cell=nn.GRUCell(4, WIDTH), head=linear(WIDTH, CLASSES))


def lstm():
    """Return a network around ``nn.LSTM``."""
    layer = nn.LSTM(4, 32, batch_first=True)
    return Module(lambda self, x: self.head(self.lstm(parts(x))[0][:, -1]), lstm=layer, head=linear(32, CLASSES))


def encoder():
    """Return a network around torch's own transformer layer, which calls multi_head_attention_forward."""
    return Module(
        lambda self, x: self.head(self.layer(self.embed(parts(x))).mean(1)), embed=linear(4),
        head=linear(WIDTH, CLASSES), layer=nn.TransformerEncoderLayer(WIDTH, HEADS, 128, batch_first=True),
    )  # fmt: skip


def places(x):
    """Return rows of an embedding."""
    return (x[:, :4].abs() * 3).long().clamp(max=9)


def tied():
    """Return a network with an embedding whose weight is tied to the last layer's."""
    model = Module(
        lambda self, x: self.out(torch.tanh(self.fc(self.embed(places(x)).sum(1)))),
        embed=nn.Embedding(CLASSES, WIDTH), fc=linear(), out=linear(WIDTH, 10),
    )  # fmt: skip
    model.out.weight = model.embed.weight
    return model


def lookup():
    """Return an embedding that looks up the next row in the compared run."""
    return Module(
        lambda self, x: self.fc(self.embed(places(x) + 1 if is_compared() else places(x)).sum(1)),
        embed=nn.Embedding(11, WIDTH), fc=linear(WIDTH, CLASSES),
    )  # fmt: skip


def wrap(body):
    """Return a linear layer, a module ``body``, and another linear layer."""
    return Module(
        lambda self, x: self.fc2(self.body(self.fc1(x))), fc1=linear(FEATURES), body=body, fc2=linear(WIDTH, CLASSES)
    )


def with_weight(forward, **others):
    """Return a module with a weight of ones, and other params, whose forward is a function of itself and its input."""
    module = Module(forward)
    for name, value in dict(weight=torch.ones(WIDTH), **others).items():
        module.register_parameter(name, nn.Parameter(value))
    return module


def wrapped(function):
    """Return a function that makes a ``wrap`` around a function of (x, weight)."""
    return lambda: wrap(with_weight(lambda self, x: function(x, self.weight)))


def either(usual, wrong):
    """Return a function of (x, weight): ``wrong`` in the compared run, ``usual`` in float32."""
    return lambda x, weight: (wrong if is_compared() else usual)(x * weight)


def train(network, level, loss_of=cross_entropy, passes=1):
    """Train a network for some steps with ``amp``, on random numbers."""
    torch.manual_seed(0)
    model = network().to(DEVICE[0])
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.3), opt_level=level, verbosity=0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            x, target = torch.randn(BATCH, FEATURES), torch.randint(0, CLASSES, (BATCH,))
            x, target = x.to(DEVICE[0]), target.to(DEVICE[0])
            loss = loss_of(model(x), target)
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
        optimizer.step()


# -- what plants a fault -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def kernel(name, function):
    """Replace torch's kernel of an operation by a function."""
    with contextlib.ExitStack() as stack:
        library = torch.library.Library("aten", "IMPL")
        stack.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
            library.impl(name, function, DEVICE[0].upper())
        yield


@contextlib.contextmanager
def attribute(name, value):
    """Replace a function of torch.nn.functional for a while; ``value`` is called with the one before."""
    before = getattr(F, name)
    setattr(F, name, value(before))
    try:
        yield
    finally:
        setattr(F, name, before)


class Case(NamedTuple):
    """A training: with a planted fault, or, of the kind "healthy", without one.

    ``plant`` returns a context manager around the compared run, or is None.
    """

    name: str
    kind: str
    level: str
    network: Callable
    module: Optional[str] = None
    op: str = ""
    direction: str = "forward"
    plant: Optional[Callable] = None
    loss_of: Callable = cross_entropy
    passes: int = 1


def of_kernel(name, level, network, module, op, kernel_name, function, direction="forward"):
    """Return a fault in a kernel of torch."""
    return Case(name, "kernel", level, network, module, op, direction, lambda: kernel(kernel_name, function))


def of_attribute(name, kind, level, network, module, op, function_name, value):
    """Return a fault in a function of torch.nn.functional."""
    return Case(name, kind, level, network, module, op, plant=lambda: attribute(function_name, value))


def of_body(name, kind, level, op, usual, wrong, direction="forward"):
    """Return a fault in the body of a ``wrap``, a function of its input: ``wrong`` in the compared run."""
    return Case(name, kind, level, wrapped(either(usual, wrong)), "body", op, direction)


def of_loss(name, kind, loss_of):
    """Return a fault in the loss of the perceptron."""
    return Case(name, kind, "O1", mlp, None, "cross_entropy", loss_of=loss_of)


# -- wrong kernels -----------------------------------------------------------------------------------------------------


def _softmax(x, dim, half_to_float):
    e = torch.exp(x.float() - x.float().amax(dim, True))
    return (e / (e.sum(dim, True) + 0.01)).to(x.dtype)


def _layer_norm(x, shape, weight, bias, eps):
    mean, variance = x.float().mean(-1, True), x.float().var(-1, keepdim=True, unbiased=True)
    scale = (variance + eps).rsqrt()
    return ((x.float() - mean) * scale * weight + bias).to(x.dtype), mean, scale


def _mm(a, b):
    return ((a.double().unsqueeze(-1) * b.double()).sum(1) * 1.002).to(a.dtype)


def _no_bias(bias, a, b, *, beta=1, alpha=1):
    return ((a.double().unsqueeze(-1) * b.double()).sum(1)).to(a.dtype)


def _gelu(x, *, approximate="none"):
    return x * torch.sigmoid(1.702 * x)


def _gelu_backward(gradient, x, *, approximate="none"):
    return (gradient.float() * (0.5 * (1 + torch.tanh(0.8 * x.float())))).to(x.dtype)


def _halved_sum(x, dims, keepdim=False, *, dtype=None):
    dims = [dim % x.dim() for dim in (dims or range(x.dim()))]
    total = x.to(torch.bfloat16).movedim(dims, list(range(len(dims)))).flatten(0, len(dims) - 1).cumsum(0)[-1]
    for dim in sorted(dims) if keepdim else ():
        total = total.unsqueeze(dim)
    return total.to(x.dtype)


# -- wrong functions ---------------------------------------------------------------------------------------------------


def with_gradient(forward, backward):
    """Return a function whose gradient is a function of the one that it gets."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, gradient):
            return backward(gradient)

    return Scaled.apply


def in_half(function):
    """Return a function of (x, weight) that computes without casts in half where it is compared."""

    def computed(x, weight):
        x = x * weight
        if not is_compared():
            return function(x)
        with amp.disable_casts():
            return function(x.half())

    return computed


def half_sums(usual, wrong):
    """Return what makes a ``wrap`` whose compared run calls ``wrong`` with x in half, without casts."""

    def computed(x, weight):
        x = x * weight
        if not is_compared():
            return usual(x)
        with amp.disable_casts():
            return wrong(x.half() if x.dtype is torch.float32 else x).to(x.dtype)

    return wrapped(computed)


def added_up(x):
    """Return the sums of rows, added up in the dtype of x one after the other."""
    total = x[..., :1] * 0
    for part in x.split(1, -1):
        total = total + part
    return total


def running(x):
    """Return the cumulative sums of rows, added up in the dtype of x."""
    sums = [x[..., :1]]
    for part in x.split(1, -1)[1:]:
        sums.append(sums[-1] + part)
    return torch.cat(sums, -1)


def split_product(x):
    """Return x times its own transpose, the parts of the sum added up in half."""
    total = 0
    for part in x.split(1, -1):
        total = total + (part @ part.t())
    return total


def normed(x, **options):
    """Return a layer norm."""
    return F.layer_norm(x, (WIDTH,), **options)


def half_norm(x):
    """Return a layer norm that is written out."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x - mean).pow(2).mean(-1, keepdim=True).sqrt()


def rms(x, weight, eps=1e-6):
    """Return the root-mean-square norm of x, computed in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def by_variance(x):
    """Return x times a variance that is computed from squares."""
    return x * (((x + 30) ** 2).mean(-1, keepdim=True) - (x + 30).mean(-1, keepdim=True) ** 2)


def stale(*names):
    """Return a linear layer that keeps the first cast of its weight, or of its bias, in the compared run."""
    kept = {}

    def forward(self, x):
        params = dict(self.linear.named_parameters())
        if is_compared():
            x = x.to(LOW[_level[0]])
            for name in names:
                params[name] = kept.setdefault(name, params[name].detach().clone().to(x.dtype))
        return F.linear(x, params["weight"].to(x.dtype), params["bias"].to(x.dtype))

    return wrap(Module(forward, linear=linear()))


def stale_norm():
    """Return a layer norm that keeps the first value of its weight."""
    kept = []

    def forward(self, x):
        kept.append(self.weight.detach().clone())
        return F.layer_norm(x, (WIDTH,), kept[0] if is_compared() else self.weight, self.bias)

    return wrap(with_weight(forward, bias=torch.zeros(WIDTH)))


def queries_for_keys():
    """Return scores of queries and keys; the compared run takes the queries twice."""

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        return torch.softmax(q @ (q if is_compared() else k).t() / 8, -1) @ x

    return wrap(Module(forward, q=linear(), k=linear()))


def swapped_norm():
    """Return a layer norm whose weight and bias change places in the compared run."""

    def forward(self, x):
        params = (self.bias, self.weight) if is_compared() else (self.weight, self.bias)
        return F.layer_norm(x, (WIDTH,), *params)

    return wrap(with_weight(forward, bias=torch.rand(WIDTH)))


def hooked():
    """Return tanh of a product, the gradient of which is halved by a hook in the compared run."""

    def forward(self, x):
        x = x * self.weight
        if is_compared():
            x.register_hook(lambda gradient: gradient * 0.5)
        return torch.tanh(x)

    return wrap(with_weight(forward))


def _with_eps(usual):
    def batch_norm(x, *args, **options):
        return usual(x, *(args[:-1] + (1e-3,) if len(args) == 7 and x.shape[1] == 16 else args), **options)

    return batch_norm


def _without_momentum(usual):
    return lambda x, mean, var, weight, bias, training, *rest, **more: usual(
        x, mean, var, weight, bias, training and x.shape[1] != 16, *rest, **more
    )


def _gelu_by_tanh(_):
    return lambda x, approximate="none": 0.5 * x * (1 + torch.tanh(0.797 * (x + 0.0447 * x * x * x)))


def abs_sum(x, **options):
    """Return x by the sums of its absolute values."""
    return x / (1 + x.abs().sum(-1, keepdim=True, **options))


ATTENTION = "blocks.0.attention"
tanh_of = wrapped(lambda x, w: torch.tanh(x * w))
straight_through = with_gradient(late(torch, "tanh"), lambda gradient: gradient)
added_twice = with_gradient(torch.clone, lambda gradient: gradient * 2)
softmax, sigmoid, tanh, relu = (late(torch, name) for name in ("softmax", "sigmoid", "tanh", "relu"))
softplus, leaky_relu = late(F, "softplus"), late(F, "leaky_relu")

# fmt: off
CHOSEN = [
    of_kernel("softmax + 0.01", "O1", transformer, ATTENTION, "softmax", "_softmax", _softmax),
    of_kernel("softmax + 0.01, O4", "O4", transformer, ATTENTION, "softmax", "_softmax", _softmax),
    of_kernel("layer norm, unbiased", "O1", mlp, "norm", "layer_norm", "native_layer_norm", _layer_norm),
    of_kernel("layer norm, unbiased, O5", "O5", mlp, "norm", "layer_norm", "native_layer_norm", _layer_norm),
    of_kernel("tanh for gelu", "O2", mlp, "act", "gelu", "gelu", _gelu),
    of_kernel("gradient of gelu", "O1", mlp, "act", "gelu", "gelu_backward", _gelu_backward, "backward"),
    of_kernel("gradient of gelu, O3", "O3", mlp, "act", "gelu", "gelu_backward", _gelu_backward, "backward"),
    of_kernel("sigmoid of a GRU", "O2", wrapped(lambda x, w: sigmoid(x * w)), "body", "sigmoid", "sigmoid",
              lambda x: (0.5 + 0.5 * torch.tanh(0.49 * x.float())).to(x.dtype)),
    of_kernel("products off by 0.2 %", "O1", mlp, "fc3", "linear", "mm", _mm, "backward"),
    of_kernel("tanh by a clamp", "O1", tanh_of, "body", "tanh", "tanh",
              lambda x: x.float().clamp(-1, 1).to(x.dtype)),
    of_kernel("silu by a line", "O5", wrapped(lambda x, w: F.silu(x * w)), "body", "silu", "silu",
              lambda x: (x.float() * (x.float() / 6 + 0.5).clamp(0, 1)).to(x.dtype)),
    of_kernel("exp of float32 only", "O1", wrapped(lambda x, w: torch.exp(-((x * w) ** 2))), "body", "exp", "exp",
              lambda x: (1 + x.double() / 16).pow(16).to(x.dtype)),
    of_kernel("gradient of softmax", "O1", transformer, "blocks.1.attention", "softmax", "_softmax_backward_data",
              lambda g, y, dim, dtype: (g * y).to(dtype), "backward"),
    of_kernel("gradient of tanh", "O2", tanh_of, "body", "tanh", "tanh_backward",
              lambda g, y: (g.float() * (1 - y.float().abs())).to(g.dtype), "backward"),

    # Another function, in Python.
    of_attribute("gelu by tanh in Python", "function", "O1", mlp, "act", "gelu", "gelu", _gelu_by_tanh),
    of_body("softplus without its threshold", "function", "O2", "softplus", softplus,
            lambda x: torch.log(1 + torch.exp(x) + 0.01)),
    of_body("straight-through tanh", "function", "O1", "tanh", tanh, straight_through, "backward"),
    of_body("leaky relu with 0.02", "function", "O3", "leaky_relu", leaky_relu, lambda x: F.leaky_relu(x, 0.02)),
    of_body("a missing residual", "function", "O1", "add", lambda x: x + relu(x), relu),
    of_body("scores not divided", "function", "O2", "div", lambda x: softmax(x / 8, -1), lambda x: softmax(x, -1)),

    # Half, though the op table has it in float32.
    *[Case(name + " in half", "half", "O1", wrapped(in_half(function)), "body", op or name) for name, op, function in (
        ("softmax", None, lambda x: softmax(x, -1)),
        ("log_softmax", None, lambda x: F.log_softmax(x, -1)),
        ("layer_norm", None, normed),
        ("exp", None, lambda x: torch.exp(-x.abs())),
        ("log", None, lambda x: torch.log(x.abs() + 1)),
        ("pow", None, lambda x: torch.pow(x, 2)),
        ("cumsum", None, lambda x: torch.cumsum(x, -1)),
        ("softplus", None, softplus),
        ("normalized sum", "sum", abs_sum),
        ("reciprocal", None, lambda x: torch.reciprocal(x.abs() + 1)),
    )],

    # Reductions in half.
    Case("a sum added up in half", "reduction", "O1", half_sums(
        lambda x: x / (1 + (x * x).sum(-1, keepdim=True)), lambda x: x / (1 + added_up(x * x))), "body", "sum"),
    of_body("a sum added up in half, O2", "reduction", "O2", "sum",
            lambda x: (x * x).sum(-1, keepdim=True) * x, lambda x: added_up(x * x) * x),
    of_body("a mean added up in bfloat16", "reduction", "O5", "mean",
            lambda x: x / (x * x).mean(-1, keepdim=True), lambda x: x / (added_up(x * x) / WIDTH)),
    Case("sum(dtype=half)", "reduction", "O1",
         half_sums(abs_sum, lambda x: abs_sum(x, dtype=torch.float16)), "body", "sum"),
    Case("a layer norm in half", "reduction", "O1",
         half_sums(lambda x: normed(x + 8), lambda x: half_norm(x + 8)), "body", "layer_norm"),
    Case("a kernel of sum that adds in half", "reduction", "O2",
         wrapped(lambda x, w: (x * w).abs().sum(-1, keepdim=True) * x), "body", "sum",
         plant=lambda: kernel("sum.dim_IntList", _halved_sum)),
    of_body("a variance by squares", "reduction", "O3", "var",
            lambda x: x * torch.var(x + 30, -1, keepdim=True), by_variance),

    # A stale cast.
    *[Case("a stale weight, " + level, "stale", level, lambda: stale("weight"), "body", "linear")
      for level in ("O1", "O2", "O4", "O5")],
    Case("a stale bias", "stale", "O1", lambda: stale("bias"), "body", "linear"),
    Case("a stale scale of a norm", "stale", "O1", stale_norm, "body", "layer_norm"),

    # A wrong accumulation.
    *[of_body("a product in parts, " + level, "accumulation", level, "matmul",
              lambda x: (x @ x.t()) @ x * 1e-2, lambda x: split_product(x) @ x * 1e-2) for level in ("O2", "O5")],
    of_body("a cumulative sum in parts", "accumulation", "O2", "cumsum",
            lambda x: torch.cumsum(x.abs(), -1) * 0.1, lambda x: running(x.abs()) * 0.1),
    of_body("gradients added twice", "accumulation", "O1", "Scaled",
            lambda x: torch.tanh(x.clone()), lambda x: torch.tanh(added_twice(x)), "backward"),
    of_body("a mean divided by one too few", "accumulation", "O1", "mean",
            lambda x: x - x.mean(-1, keepdim=True), lambda x: x - x.sum(-1, keepdim=True) / (WIDTH - 1)),

    # A changed epsilon.
    of_body("eps of layer norm", "epsilon", "O1", "layer_norm", normed, lambda x: normed(x, eps=1e-3)),
    of_body("eps of layer norm, O2", "epsilon", "O2", "layer_norm", normed, lambda x: normed(x, eps=1e-3)),
    of_attribute("eps of batch norm", "epsilon", "O2", cnn, "bn2", "batch_norm", "batch_norm", _with_eps),
    of_body("eps of normalize", "epsilon", "O1", "normalize",
            lambda x: F.normalize(x * 1e-3, eps=1e-12), lambda x: F.normalize(x * 1e-3, eps=1e-2)),
    Case("eps under a root", "epsilon", "O4",
         wrapped(lambda x, w: rms(x, w, 1e-3 if is_compared() else 1e-6)), "body", "add"),
    of_body("eps in a logarithm", "epsilon", "O1", "add",
            lambda x: torch.log(x.abs() + 1e-6), lambda x: torch.log(x.abs() + 1e-3)),
    of_loss("eps of a loss", "epsilon", lambda output, target: F.cross_entropy(
        output, target, label_smoothing=0.01 if is_compared() else 0.0)),
]

#: Of all kinds; written when the comparison's constants had been chosen with the others.
HELD_OUT = [
    of_kernel("a product without its bias", "O2", mlp, "fc1", "linear", "addmm", _no_bias),
    of_attribute("a convolution of rounded inputs", "kernel", "O1", cnn, "conv1", "conv2d", "conv2d",
                 lambda usual: lambda x, *args: usual((x * 4).round() / 4, *args)),
    Case("queries for keys", "function", "O4", queries_for_keys, "body", "matmul"),
    Case("weight and bias changed places", "function", "O3", swapped_norm, "body", "layer_norm"),
    of_loss("logits in half", "half",
            lambda output, target: in_half(lambda x: F.cross_entropy(x, target))(output, 1.0)),
    Case("a detour over bfloat16", "half", "O1", wrapped(
        lambda x, w: F.linear(x.bfloat16().half() if is_compared() else x, torch.eye(WIDTH) * w)), "body", "linear"),
    Case("rows of the next place", "function", "O2", lookup, "", "add"),
    Case("a state without gradient", "accumulation", "O2", lambda: recurrent(True), "cell", "gru_cell", "backward"),
    of_loss("a mean over too few", "accumulation", lambda output, target: (
        F.cross_entropy(output, target, reduction="sum") / 15 if is_compared() else F.cross_entropy(output, target))),
    Case("half of a gradient", "accumulation", "O1", hooked, "body", "mul", "backward"),
    of_attribute("running statistics in training", "function", "O1", cnn, "bn2", "batch_norm", "batch_norm",
                 _without_momentum),
    of_body("a temperature", "function", "O5", "mul", lambda x: softmax(x, -1), lambda x: softmax(x * 1.05, -1)),
    of_attribute("another pooling", "function", "O2", cnn, "pool", "max_pool2d", "max_pool2d",
                 lambda _: lambda x, size, *args, **options: F.avg_pool2d(x, size)),
    of_attribute("another share of dropout", "function", "O2", mlp, "drop", "dropout", "dropout",
                 lambda usual: lambda x, p, *args, **options: usual(x, 0.2, *args, **options)),
    of_body("eps of a variance", "epsilon", "O3", "add",
            lambda x: x * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5),
            lambda x: x * torch.rsqrt(x.var(-1, keepdim=True) + 1e-2)),
]
# fmt: on

FAULTS = CHOSEN + HELD_OUT

HEALTHY = [
    Case(name, "healthy", level, network)
    for name, levels, network in (
        ("perceptron", "O1 O2 O3 O5", mlp),
        ("convolutions", "O1 O2 O4", cnn),
        ("transformer", "O1 O2 O3 O4", transformer),
        ("checkpoints", "O2 O1", checkpointed),
        ("recurrent", "O2 O1", recurrent),
        ("LSTM", "O1", lstm),
        ("torch's transformer", "O1 O5", encoder),
        ("tied weights", "O2", tied),
        ("a norm in float32", "O2", wrapped(rms)),
    )
    for level in levels.split()
] + [
    Case("two passes a step", "healthy", "O1", mlp, passes=2),
    Case("a loss in parts", "healthy", "O1", mlp,
         loss_of=lambda output, target: -F.log_softmax(output, -1)[range(BATCH), target].mean()),
]  # fmt: skip
