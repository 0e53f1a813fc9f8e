"""Small trainings for ``forecasts.py``: planted causes why half precision fails, and healthy networks of every kind.

A row has its name, the module to be named where a level fails (None where no fault is planted in a module), and what
differs from a plain regression: ``function`` of the values between ``embed`` and ``head``, or ``body``, or ``model``;
``change`` of the new model; ``inputs``, ``targets``; ``loss``, which the model computes where it is ``inner_loss``;
``rate`` and ``momentum``, or ``optimizer``; ``options`` of ``amp.initialize``. The cases of ``HELD_OUT`` were written
when the forecast's constants had been chosen with the others.
"""

import dataclasses
import functools
import math

import torch
from case_trainings import Body, Module, Net, Training, late
from torch import nn
from torch.nn import functional as F

WIDTH, FEATURES, BATCH = 32, 8, 32

SGD, Linear, Sequential = torch.optim.SGD, nn.Linear, nn.Sequential
relu, tanh, softmax = (late(torch, name) for name in ("relu", "tanh", "softmax"))
mse, cross_entropy = late(F, "mse_loss"), late(F, "cross_entropy")


def noise():
    """Return features from the normal distribution."""
    return torch.randn(BATCH, FEATURES)


def wave(x):
    """Return the targets of a regression: the sine of a sum, and a feature."""
    return torch.sin(x.sum(1, keepdim=True)) + x[:, :1]


def quadrant(x):
    """Return the targets of a classification: the quadrant of two features."""
    return (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()


def case(
    name, module=None, *, function=relu, body=None, model=None, change=None, outputs=1, inputs=noise, targets=wave,
    loss=mse, inner_loss=None, rate=0.05, momentum=0.0, optimizer=None, options=None,
):  # fmt: skip
    """Return a training: the plain regression by SGD where nothing else is given."""

    def new_model():
        net = model() if model else Net(body() if body else Body(function, WIDTH), FEATURES, WIDTH, outputs)
        with torch.no_grad():
            if change:
                change(net)
        return WithLoss(net, inner_loss) if inner_loss else net

    def batch(_):
        x = inputs()
        return ((x, targets(x)), None) if inner_loss else ((x,), targets(x))

    return Training(
        name,
        modules=() if module is None else (module,),
        model=new_model,
        batch=batch,
        loss=(lambda output, _: output) if inner_loss else loss,
        optimizer=optimizer or (lambda params: SGD(params, lr=rate, momentum=momentum)),
        steps=50,
        options=options or {},
    )


classified = functools.partial(case, outputs=4, rate=0.2, targets=quadrant, loss=cross_entropy)
binary = functools.partial(case, rate=0.2, targets=lambda x: (x[:, :1] > 0).float())


# -- parts of rows -----------------------------------------------------------------------------------------------------


class WithLoss(nn.Module):
    """A model that returns its loss."""

    def __init__(self, net, criterion):
        super().__init__()
        self.net, self.criterion = net, criterion

    def forward(self, x, target):
        return self.criterion(self.net(x), target)


def scaled_loss(name, factor, **changes):
    """Return a case whose loss is multiplied by a number, and its learning rate divided by it."""
    loss = lambda output, target: mse(output, target) * factor  # noqa: E731
    return case(name, loss=loss, optimizer=lambda params: SGD(params, lr=0.05 / factor), **changes)


def layers(count):
    """Return linear layers of WIDTH."""
    return [Linear(WIDTH, WIDTH) for _ in range(count)]


class Attention(nn.Module):
    """One head over the rows of a batch, with scores changed by a function."""

    def __init__(self, change=None, gain=1.0):
        super().__init__()
        self.query, self.key, self.value = layers(3)
        self.change, self.gain = change, gain

    def forward(self, x):
        x = x.view(4, -1, WIDTH)
        scores = (self.query(x) * self.gain) @ self.key(x).transpose(1, 2) / math.sqrt(WIDTH)
        weights = softmax(scores if self.change is None else self.change(scores), -1)
        return (x + weights @ self.value(x)).view(-1, WIDTH)


class MaskedInForward(Attention):
    """Attention with a float32 mask that is made in forward."""

    def forward(self, x):
        x = x.view(4, -1, WIDTH)
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), -1e9), 1)
        weights = softmax(self.query(x) @ self.key(x).transpose(1, 2) / 6 + mask, -1)
        return (x + torch.bmm(weights, self.value(x))).view(-1, WIDTH)


def upper(scores):
    """Return a matrix with ones above the diagonal, like scores."""
    return torch.ones_like(scores).triu(1)


def masked(value):
    """Return a function that makes an ``Attention`` whose scores are filled with a value above the diagonal."""
    return lambda: Attention(lambda scores: scores.masked_fill(upper(scores) > 0, value))


def mask_added(value):
    """Return a function that makes an ``Attention`` to whose scores a value is added above the diagonal."""
    return lambda: Attention(lambda scores: scores + upper(scores) * value)


class Recurrence(nn.Module):
    """A linear recurrence of 12 steps, whose state is multiplied by a factor in each, and divided at the end."""

    def __init__(self, factor):
        super().__init__()
        self.cell = Linear(WIDTH, WIDTH, bias=False)
        self.factor = factor
        with torch.no_grad():
            self.cell.weight.copy_(torch.eye(WIDTH) * factor)

    def forward(self, x):
        state = x
        for _ in range(12):
            state = self.cell(state)
        return state / self.factor**12


def own_state(first):
    """Return a cell of three steps, whose first state is a function of its input."""

    def forward(self, x):
        state = first(x)
        for _ in range(3):
            state = tanh(self.cell(torch.cat([x, state], -1)))
        return state

    return Module(forward, cell=Linear(2 * WIDTH, WIDTH))


def gain(value=8.0):
    """Return a model that multiplies by a weight."""
    module = Module(lambda self, x: x * self.weight)
    module.weight = nn.Parameter(torch.full((1,), value))
    return Sequential(nn.Identity(), module)


def last(kind):
    """Return a recurrent layer, of whose outputs the last counts, before a linear layer."""
    layer = Module(lambda self, x: self.layer(x)[0][:, -1], layer=kind(FEATURES, WIDTH, batch_first=True))
    return Sequential(layer, Linear(WIDTH, 1))


def residual():
    """Return a residual block."""
    return Module(lambda self, x: x + self.outer(relu(self.inner(x))), **dict(zip(("inner", "outer"), layers(2))))


def expanding(factor):
    """Return two linear layers, of which the first multiplies by some thousands and the second divides."""
    module = Module(lambda self, x: self.down(relu(self.up(x))), **dict(zip(("up", "down"), layers(2))))
    with torch.no_grad():
        module.up.weight.mul_(factor)
        module.down.weight.div_(factor)
    return module


def rows_of(function, **children):
    """Return a module that applies a function to its input in four parts."""
    return Module(lambda self, x: function(self, x.view(4, -1, WIDTH)).reshape(-1, WIDTH), **children)


def mixture():
    """Return two branches mixed by a learned softmax."""

    def forward(self, x):
        share = softmax(self.gate(x), -1)
        return share[:, :1] * relu(self.left(x)) + share[:, 1:] * tanh(self.right(x))

    gate = Linear(WIDTH, 2)
    return Module(forward, gate=gate, **dict(zip(("left", "right"), layers(2))))


def with_positions():
    """Return a layer whose inputs have positions from arange beside them, in float32."""

    def forward(self, x):
        positions = torch.arange(x.shape[0]).unsqueeze(1) / x.shape[0]
        return relu(self.layer(torch.cat([x, positions], -1)))

    return Module(forward, layer=Linear(WIDTH + 1, WIDTH))


def fused_attention(x):
    """Return x and its attention to itself."""
    y = x.view(4, 1, -1, WIDTH)
    return x + F.scaled_dot_product_attention(y, y, y).reshape(-1, WIDTH)


def tied():
    """Return one layer used twice."""
    (layer,) = layers(1)
    return Sequential(layer, nn.ReLU(), layer)


def gate():
    """Return a gate of eight channels."""
    return Module(
        lambda self, x: x * torch.sigmoid(self.up(relu(self.down(x.mean((2, 3))))))[:, :, None, None],
        down=Linear(8, 4),
        up=Linear(4, 8),
    )


def conv1d():
    """Return a convolution, a group norm and a linear layer."""
    return Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), Linear(64, 1))


def images():
    """Return images of 8 by 8."""
    return torch.randn(BATCH, 1, 8, 8)


def halves(x):
    """Return the targets of images: whether each half is brighter than 0."""
    return (x[:, 0, :4].mean((1, 2)) > 0).long() * 2 + (x[:, 0, 4:].mean((1, 2)) > 0).long()


def of_images(name, *modules):
    """Return a case that classifies images: a convolution with batch norm, other modules, and a linear layer."""
    model = lambda: Sequential(  # noqa: E731
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), *[make() for make in modules], nn.Flatten(), Linear(32, 4)
    )
    return classified(name, model=model, inputs=images, targets=halves)


def plain_net():
    """Return the network of the plain regression."""
    return Net(Body(relu, WIDTH), FEATURES, WIDTH)


def net_after(module):
    """Return a function that makes the plain network after another module."""
    return lambda: Sequential(module(), plain_net())


def after_batch_norm(name, module, offset):
    """Return a case whose features have an offset and a deviation of 1, with a batch norm first."""
    return case(name, module, model=net_after(lambda: nn.BatchNorm1d(FEATURES)),
                inputs=lambda: noise() + offset, targets=lambda x: wave(x - offset))  # fmt: skip


def outliers():
    """Return features of which the first row is a million times as large."""
    x = noise()
    x[0] *= 1e6
    return x


def zero_rows(name, module, function, rate=0.05):
    """Return a case with a batch in which some rows are 0, and stay 0 up to the body."""

    def inputs():
        x = noise()
        x[:3] = 0
        return x

    return case(name, module, function=function, inputs=inputs, change=lambda net: net.embed.bias.zero_(),
                optimizer=lambda params: SGD(params[:1] + params[2:], lr=rate))  # fmt: skip


def fourth_power(x):
    """Return the fourth power of activations of about 20, scaled back."""
    y = tanh(x) * 20
    y = y * y
    return y * y / 160000


def cube(x):
    """Return the cube of 100 in half, by multiplication, and activations."""
    y = (tanh(x) * 100).to(x.dtype)
    return y * y * y / 1e6 + relu(x)


def outer_product(x):
    """Return an outer product of activations of 500, summed."""
    y = tanh(x) * 500
    return torch.bmm(y.unsqueeze(2), y.unsqueeze(1)).mean(2) / 2.5e5 + x


def bilinear(x):
    """Return einsum of two activations of 400 over 32 units, and activations."""
    y = tanh(x) * 400
    return torch.einsum("bi,bj->bij", y, y).sum(-1) / 1e6 + relu(x)


def large_norm(x):
    """Return values divided by the root of squares of 1e6, which are summed by hand."""
    y = x * 1e3
    return y / (y * y).sum(-1, keepdim=True).add(1.0).sqrt() * 3


def root_of_mean(x):
    """Return values divided by the root of a mean of squares of 600, by pow."""
    y = tanh(x) * 600
    return y / (torch.mean(torch.square(y), -1, keepdim=True) + 1).sqrt()


def by_hand(x):
    """Return a norm of rows that is written out, whose squares are 1e5."""
    y = x * 1000
    y = y - y.mean(-1, keepdim=True)
    return y / (y.pow(2).mean(-1, keepdim=True).sqrt() + 1e-3)


def rms(x, eps):
    """Return x divided by its root mean square."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def standardized(x):
    """Return standardized columns, of which a quarter are constant."""
    y = torch.cat([relu(x[:, :24]), x[:, 24:] * 0 + 0.5], -1)
    return (y - y.mean(0)) / (y.var(0, unbiased=False) + 1e-9).sqrt()


def differences(x):
    """Return differences between neighbours of a sum that has grown to some thousands."""
    total = torch.cumsum(torch.sigmoid(x) + 300, -1)
    return torch.cat([x[:, :1], total[:, 1:] - total[:, :-1] - 300], -1)


def log_of_variance(x):
    """Return activations and log(var + 1e-9) of rows of which some are constant."""
    y = x.detach() * (torch.arange(len(x), device=x.device)[:, None] > 2)
    return relu(x) + 0.1 * torch.log(y.pow(2).mean(-1, keepdim=True) + 1e-9).tanh()


def by_multiplication(output, target):
    """Return a loss of differences of 1000 between two outputs, squared by multiplication."""
    difference = (output - output.flip(0) * 2) * 1000
    return (difference * difference).mean() + (output.float() - target.float()).pow(2).mean()


def with_mean(loss, factor):
    """Return a loss multiplied by a factor."""
    return lambda output, target: loss(output, target) * factor


def cumulative(x):
    """Return what is left of a cumulative sum of 1e5, and x."""
    y = torch.cumsum(torch.sigmoid(x) * 1e4, -1)
    return (y[:, -1:] - y) / 1e5 + x


def in_float32(x):
    """Return a norm in float32, cast back to the dtype of x."""
    return rms(x.float(), 1e-6).to(x.dtype)


def entropy(x):
    """Return p log p of a sharp softmax with an eps of 1e-10, and activations."""
    p = softmax(x * 60, -1)
    return p * torch.log(p + 1e-10) + relu(x)


def adam(lr, eps=1e-8, kind=torch.optim.Adam):
    """Return what makes an Adam."""
    return lambda params: kind(params, lr=lr, eps=eps)


# fmt: off
CHOSEN = [
    # -- values too large --
    # Activations of 1e5, scaled back in the same module.
    case("ActivationOverflows", "body", function=lambda x: relu(x * 1e5) / 1e5),
    # Outputs of 1e6 from a layer with large weights and inputs, before a layer norm.
    case("LargeWeightsBeforeNorm", "embed", body=lambda: Sequential(nn.LayerNorm(WIDTH), nn.ReLU()),
         change=lambda net: net.embed.weight.mul_(3e3), inputs=lambda: noise() * 300, targets=lambda x: wave(x / 300)),
    # Scores of attention of 1e5, from large queries.
    case("AttentionLogits", "body", body=lambda: Attention(gain=3e5)),
    case("PowersOfActivations", "body", function=fourth_power),
    # A sum of 4096 numbers of 50 in half, divided afterwards.
    case("LongSum", "body",
         function=lambda x: (relu(x) * 50).unsqueeze(-1).expand(-1, -1, 4096).sum(-1) / (4096 * 50)),
    case("VarianceByHand", "body", function=by_hand),
    # A state that grows by 3 in each of 12 steps, and is divided at the end.
    case("ExplodingRecurrence", "body.cell", body=lambda: Recurrence(3.0), rate=0.005),
    # A state that keeps its size.
    case("HealthyRecurrence", body=lambda: Recurrence(1.0), rate=0.002),
    # A cumulative sum of 1e5 in the end, then a difference.
    case("CumulativeSum", "body", function=cumulative, rate=0.01),
    # Features of 1e5 into a layer with small weights.
    case("UnscaledInputs", "embed", change=lambda net: net.embed.weight.div_(1e5), inputs=lambda: noise() * 1e5,
         targets=lambda x: wave(x / 1e5),
         optimizer=lambda params: SGD([{"params": params[:1], "lr": 0.0}, {"params": params[1:]}], lr=0.05)),
    # Features of 1e5 into a batch norm: fine where the function decides, not where the inputs are cast.
    case("InputsBeforeNorm", "0", model=net_after(lambda: nn.BatchNorm1d(FEATURES)), inputs=lambda: noise() * 1e5,
         targets=lambda x: wave(x / 1e5)),
    # exp of about 12, scaled afterwards.
    case("ExpInModel", "body", function=lambda x: torch.exp(tanh(x) + 12) / 4e5, rate=0.02),
    # Scores masked by -1e9, which float16 cannot hold.
    case("MaskedByMinusBillion", "body", body=masked(-1e9)),
    # Scores masked by -inf, or to which -1e4 or -1e9 (-inf in float16, and 0 after the softmax) is added: healthy.
    case("MaskedByMinusInfinity", body=masked(float("-inf"))),
    case("MaskAdded", body=mask_added(-1e4)),
    case("MaskOfMinusBillionAdded", body=mask_added(-1e9)),
    # 1e6 before a tanh: inf there is 1 all the same. Beside it the signal.
    case("SaturatedTanh", function=lambda x: relu(x) + 0.1 * tanh(x.detach().sign() * 1e3 * 1e3)),
    # -1e6 before a relu: 0 all the same.
    case("NegativeBeforeRelu", function=lambda x: relu(torch.cat([x[:, :16], x[:, 16:].abs() * -1e6 - 1e6], -1))),
    # Outputs and targets of 1e5.
    case("LargeTargets", "head", change=lambda net: net.head.bias.fill_(1e5), rate=1e-2,
         targets=lambda x: wave(x) * 100 + 1e5, loss=with_mean(mse, 1e-4)),
    # A softmax with a temperature of 1e-5.
    case("LargeCosines", "body", function=lambda x: softmax(tanh(x).detach() / 1e-5, -1) + relu(x), rate=0.02),
    # Logits of 1e5 from the last layer, divided in the loss.
    classified("LargeLogits", "head", change=lambda net: net.head.weight.mul_(1e6),
               optimizer=lambda params: SGD(params[:3], lr=0.2),
               loss=lambda output, target: cross_entropy(output / 1e6, target)),
    # One row in each batch has features of 1e6, which a clamp in the model limits after the first layer.
    case("BatchOfOutliers", "embed", function=lambda x: relu(x.clamp(-4, 4)), inputs=outliers,
         targets=lambda x: wave(x.clamp(-1, 1)), optimizer=lambda params: SGD(params[2:], lr=0.02)),

    # -- gradients --
    # Lost without a loss scale; lost at the first dynamic scale too; healthy; too large for a static scale of 1; so
    # large that a dynamic scale searches for longer than the run.
    scaled_loss("TinyGradients", 1e-8),
    scaled_loss("TinierGradients", 1e-15),
    scaled_loss("SmallGradients", 1e-3),
    scaled_loss("LargeGradients", 3e5),
    scaled_loss("HugeGradients", 1e13),
    # Static scales: too low, too high, and one that fits.
    scaled_loss("StaticScaleTooLow", 1e-8, options={"loss_scale": 1.0}),
    case("StaticScaleTooHigh", options={"loss_scale": 2.0**20}),
    case("StaticScaleThatFits", options={"loss_scale": 128.0}),
    # A mean over 2**18 outputs, so that the gradient of each is 1e-7 and less.
    case("MeanOverMany", targets=lambda x: wave(x) * 0.1,
         loss=lambda output, target: mse(output.expand(-1, 2**18 // BATCH), target.expand(-1, 2**18 // BATCH))),
    # A branch of 1e-6 of the signal: what becomes 0 there is not missed.
    case("SmallBranch", function=lambda x: relu(x) + 1e-6 * tanh(x)),
    # Activations of 1e-9, made large again by a norm.
    case("SignalMadeSmall", "body", function=lambda x: relu(x) * 1e-9 * 1e9),

    # -- updates --
    # A bias of 1000 that moves by 0.1 per step, under half a unit of the last place.
    case("LargeWeightsSmallUpdates", "head", change=lambda net: net.head.bias.fill_(1000.0),
         targets=lambda x: wave(x) * 0.1 + 1006.0,
         optimizer=lambda params: SGD([{"params": params[:-1], "lr": 0.0}, {"params": params[-1:]}], lr=0.02)),
    # A gain of 8 that moves by 1e-3 per step, of features about 100; with a large learning rate it is healthy.
    case("SlowGain", "1", model=gain, inputs=lambda: torch.rand(BATCH, 1) * 50 + 50, targets=lambda x: x * 8.2,
         rate=2e-7),
    case("FastGain", model=gain, inputs=lambda: torch.rand(BATCH, 1) * 50 + 50, targets=lambda x: x * 12, rate=2e-5),
    # SGD with momentum: healthy.
    case("Momentum", rate=0.02, momentum=0.9),
    # A learning rate of 1e-6: no level makes progress, and none is worse.
    case("SlowRate", rate=1e-6),

    # -- epsilons --
    # Adam's eps of 1e-8 is 0 in half weights; one of 1e-3, with gradients of 10, is not.
    case("AdamWithItsEpsilon", optimizer=adam(1e-2)),
    case("AdamWithLargeEpsilon", optimizer=adam(1e-2, 1e-3), loss=with_mean(mse, 30)),
    # RMSprop's eps of 1e-8 is 0 in half weights.
    case("RMSpropWithItsEpsilon", optimizer=adam(1e-3, kind=torch.optim.RMSprop)),
    # Adagrad's eps of 1e-10 is 0 in half weights, as is the gradient of a dead unit.
    case("AdagradWithItsEpsilon", change=lambda net: net.embed.bias[:4].fill_(-100.0),
         optimizer=lambda params: torch.optim.Adagrad(params, lr=1e-2)),
    # x * rsqrt(mean(x**2) + 1e-8) of a row of zeros; with 1e-3 it is healthy.
    zero_rows("RootMeanSquareByHand", "body", lambda x: rms(x, 1e-8)),
    zero_rows("RootMeanSquareWithLargeEpsilon", None, lambda x: rms(x, 1e-3)),
    # x / (|x| + 1e-8) of a row of zeros.
    zero_rows("DividedByNorm", "body", lambda x: x / (x.abs().sum(-1, keepdim=True) + 1e-8), rate=0.02),
    # F.normalize, whose eps is 1e-12, of a row of zeros.
    zero_rows("NormalizedRows", "body", lambda x: F.normalize(x, dim=-1) * 3),
    # log(p + 1e-8) of probabilities that are 0 in float16, in the model.
    classified("LogOfProbability", "body", function=lambda x: torch.log(softmax(x * 40, -1) + 1e-8) / 10, rate=0.02),
    # sqrt(relu(x) + 1e-12), whose derivative is infinite at 0.
    case("RootOfSmall", "body", function=lambda x: torch.sqrt(relu(x) * 0.5 + 1e-12), rate=1e-8),
    # A layer norm with the eps of 1e-12 of BERT, computed in float32 inside, and one with an eps of 1: healthy.
    case("LayerNormWithTinyEpsilon", body=lambda: Sequential(nn.LayerNorm(WIDTH, eps=1e-12), nn.ReLU())),
    case("LayerNormWithLargeEpsilon", body=lambda: Sequential(nn.LayerNorm(WIDTH, eps=1.0), nn.ReLU())),

    # -- losses --
    # A loss in half of differences about 1: healthy.
    case("LossInHalf", inner_loss=mse),
    # Differences of 1000, squared in half where the table does not decide.
    case("SquaresInHalf", "", inner_loss=lambda output, target: mse(output, target * 1000) * 1e-3, rate=1e-5),
    # Differences of 1000 between two half outputs, squared by multiplication.
    case("SquaresByHand", "", inner_loss=by_multiplication, rate=1e-8),
    # binary_cross_entropy of a sigmoid, which O1 refuses; from logits it is healthy.
    binary("BinaryCrossEntropy", "", model=lambda: Sequential(plain_net(), nn.Sigmoid()),
           loss=late(F, "binary_cross_entropy")),
    binary("BinaryCrossEntropyWithLogits", loss=late(F, "binary_cross_entropy_with_logits")),
    # A Huber loss: healthy.
    case("Huber", loss=late(F, "smooth_l1_loss")),
    # A divergence from a teacher at temperature 4: healthy.
    classified("Distilled", targets=lambda x: softmax(x[:, :4] * 3, -1),
               loss=lambda output, target: F.kl_div(F.log_softmax(output, -1), target, reduction="batchmean")),

    # -- rounding --
    # Features of 30000, or of 30 (healthy), with a deviation of 1, into a batch norm.
    after_batch_norm("OffsetOfInputs", "0", 3e4),
    after_batch_norm("SmallOffsetOfInputs", None, 30.0),
    # A difference of two numbers of 10000 that are 1 apart.
    case("OffsetWithin", "body", function=lambda x: relu(x) + 2e4 - 2e4),
    # The sine of an angle of 10000.
    case("LargePhase", "body", function=lambda x: torch.sin(x.detach() * 2e4) * 0.3 + relu(x), rate=1e-2,
         targets=lambda x: x[:, :1] * 0.5),
    # Logits of 20000 with differences of 1.
    classified("OffsetOfLogits", "head", change=lambda net: net.head.bias.fill_(2e4)),
    # Outputs of 5000, or of 20 (healthy), with deviations of 1.
    case("OutputsNearOffset", "head", change=lambda net: net.head.bias.fill_(5e3), targets=lambda x: wave(x) + 5e3,
         rate=0.02),
    case("OutputsNearSmallOffset", change=lambda net: net.head.bias.fill_(20.0), targets=lambda x: wave(x) + 20,
         rate=0.02),

    # -- dtypes --
    # A tensor made in forward meets half weights, in float32, or with the input's dtype: healthy.
    case("StateInFloat32", body=lambda: own_state(lambda x: torch.zeros(x.shape[0], WIDTH))),
    case("StateLikeInput", body=lambda: own_state(lambda x: x.new_zeros(x.shape[0], WIDTH))),
    # A norm in float32 that casts back to the dtype of its input: healthy.
    case("CastBack", function=in_float32),

    # -- healthy networks of every kind --
    case("HealthyRegression"),
    classified("HealthyClassification"),
    case("DeepResidual", body=lambda: Sequential(*[residual() for _ in range(8)]), rate=0.01),
    classified("BatchNorm", body=lambda: Sequential(
        nn.BatchNorm1d(WIDTH), nn.ReLU(), Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))),
    of_images("Convolutions", nn.ReLU, lambda: nn.MaxPool2d(2), lambda: nn.Conv2d(8, 8, 3, padding=1),
              lambda: nn.GroupNorm(2, 8), nn.ReLU, lambda: nn.AdaptiveAvgPool2d(2)),
    case("LongShortTerm", model=lambda: last(nn.LSTM), inputs=lambda: torch.randn(BATCH, 6, FEATURES),
         targets=lambda x: x[:, -1, :1] + 0.5 * x[:, -2, :1], rate=0.1),
    case("GatedRecurrent", model=lambda: last(nn.GRU), inputs=lambda: torch.randn(BATCH, 6, FEATURES),
         targets=lambda x: x[:, -1, :1] + 0.5 * x[:, -2, :1], rate=0.1),
    case("Transformer", optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3), body=lambda: rows_of(
        lambda self, x: self.layer(x),
        layer=nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True))),
    case("HealthyAttention", body=Attention),
    case("FusedAttention", function=fused_attention),
    # The mean of embeddings.
    classified("Embedded", rate=0.5, inputs=lambda: torch.randint(20, (BATCH, 3)), targets=lambda x: x[:, 0] % 4 // 1,
               model=lambda: Module(lambda self, x: self.head(self.table(x).mean(1)),
                                    table=nn.Embedding(20, WIDTH), head=Linear(WIDTH, 4))),
    case("Dropout", body=lambda: Sequential(nn.ReLU(), nn.Dropout(0.5))),
    case("SmoothActivations", body=lambda: Sequential(
        nn.GELU(), Linear(WIDTH, WIDTH), nn.SiLU(), Linear(WIDTH, WIDTH), nn.Softplus())),
    # The inputs as targets, through four units.
    case("Autoencoder", outputs=FEATURES, targets=lambda x: x * 0.5,
         body=lambda: Sequential(Linear(WIDTH, 4), nn.Tanh(), Linear(4, WIDTH), nn.ReLU())),
    case("TiedWeights", body=tied),
    # The overflowing body, kept in float32 by the script already.
    case("KeptByScript", function=lambda x: relu(x * 1e5) / 1e5, options={"keep_fp32": ["body"]}),

    # -- more of all kinds --
    case("CubeOfActivations", "body", function=cube),
    # Activations of 1e6, or of 1e3 (healthy), between two layers that do not learn.
    case("WideRange", "body.up", body=lambda: expanding(1e6),
         optimizer=lambda params: SGD(params[:2] + params[-2:], lr=0.05)),
    case("ModerateRange", body=lambda: expanding(1e3),
         optimizer=lambda params: SGD(params[:2] + params[-2:], lr=0.05)),
    # A convolution with weights of 1e4 over inputs of 100, then a group norm; with inputs and weights of 1: healthy.
    case("ConvolutionOverflows", "0", model=conv1d, change=lambda net: net[0].weight.mul_(1e4),
         inputs=lambda: torch.randn(BATCH, 1, FEATURES) * 100, targets=lambda x: x[:, 0, :1] / 100),
    case("HealthyConvolution", model=conv1d, change=lambda net: net[0].weight.mul_(1e4).div_(1e4),
         inputs=lambda: torch.randn(BATCH, 1, FEATURES), targets=lambda x: x[:, 0, :1]),
    case("ProductOfFeatures", "body", function=outer_product, rate=0.02),
    # A gate of 1e6 before a sigmoid, and 1e6 clamped to 6: healthy.
    case("GatedBySigmoid", function=lambda x: relu(x) * torch.sigmoid(x.detach() * 1e6)),
    case("ClampedActivations", function=lambda x: torch.clamp(x.detach() * 1e6, -6, 6) * 0.1 + relu(x)),
    case("NormOfLargeVector", "body", function=large_norm),
    # A quotient of two numbers of 1e-9.
    case("SmallDenominator", "body", function=lambda x: relu(x) * 1e-9 / ((x.abs() + 1) * 1e-9)),
    # Features of 1e-9 that a large first weight makes 1.
    case("SmallInputs", "embed", change=lambda net: net.embed.weight.mul_(1e9), inputs=lambda: noise() * 1e-9,
         targets=lambda x: wave(x * 1e9), optimizer=lambda params: SGD(params[1:], lr=0.05)),
    # Gradients of 1e-10 with an Adam whose eps is smaller still.
    case("TinyGradientsOfAdam", optimizer=adam(1e-2, 1e-16), loss=with_mean(mse, 1e-10)),
    # Gradients of 1e8; small ones with a static scale of 1024: healthy; ones of 1e5 with a static scale of 64.
    scaled_loss("GradientsOfMillions", 1e8),
    scaled_loss("ScaleOf1024", 1e-3, options={"loss_scale": 1024.0}),
    scaled_loss("ScaleForHugeGradients", 1e4, options={"loss_scale": 64.0}),
    # Adam with an eps of 1e-6 and gradients of 1e-3: their squares are 0 in half.
    case("AdamWithMiddlingEpsilon", optimizer=adam(1e-2, 1e-6), loss=with_mean(mse, 1e-3)),
    # A bias of 300 that SGD with momentum moves by 0.01 per step.
    case("MomentumOfLargeWeights", "head", change=lambda net: net.head.bias.fill_(300.0),
         targets=lambda x: wave(x) + 303.0, optimizer=lambda params: SGD(params[-1:], lr=2e-4, momentum=0.9)),
    # (x - mean) / (std + 1e-9) of columns that are constant in a quarter of the batch's columns.
    case("StandardizedByHand", "body", function=standardized, rate=0.01),
    # rsqrt of sums of squares with an eps of 1e-5: healthy.
    case("InverseSquareRoot", function=lambda x: rms(x, 1e-5)),
    classified("EntropyOfWeights", "body", function=entropy),
    # Features of 2000 with a deviation of 1: lost in bfloat16, not in float16.
    after_batch_norm("LargeOffsetOfInputs", "0", 2e3),
    case("RunningDifference", "body", function=differences),
    case("PositionsInFloat32", "body.layer", body=with_positions),
    # A mask of 1e30 written into half scores.
    case("FilledByHand", "body", body=masked(-1e30)),
    # A GRU cell whose state is made like its input: healthy.
    case("CellInFloat32", rate=0.1, body=lambda: Module(
        lambda self, x: self.cell(x, self.cell(x, torch.zeros_like(x))), cell=nn.GRUCell(WIDTH, WIDTH))),
    # Grouped convolutions with batch norm and SiLU.
    of_images("SeparableConvolutions", nn.SiLU, lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8),
              lambda: nn.Conv2d(8, 8, 1), lambda: nn.BatchNorm2d(8), nn.SiLU, lambda: nn.AdaptiveAvgPool2d(2)),
    case("MultiHead", body=lambda: rows_of(
        lambda self, x: x + self.heads(x, x, x, need_weights=False)[0],
        heads=nn.MultiheadAttention(WIDTH, 4, batch_first=True))),
    case("Mixture", body=mixture),
    # A cosine embedding loss between two vectors.
    case("CosineLoss", outputs=8, targets=lambda x: x,
         loss=lambda output, target: (1 - F.cosine_similarity(output, target)).mean()),
    # Cross-entropy with smoothed labels and weight decay.
    classified("LabelsSmoothed", optimizer=lambda params: SGD(params, lr=0.2, weight_decay=1e-3),
               loss=functools.partial(cross_entropy, label_smoothing=0.1)),
    # Logits of 3e5 whose differences count, from weights of 1e6.
    classified("LargeClassWeights", "head", change=lambda net: net.head.weight.mul_(3e6),
               optimizer=lambda params: SGD(params[3:4], lr=0.0)),
]

HELD_OUT = [
    case("SquareBeforeMean", "body", function=root_of_mean),
    # A layer that returns 1e6, or 1e3 (healthy), before batch norm.
    classified("BatchNormAfterLargeLayer", "embed", body=lambda: Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU()),
               change=lambda net: net.embed.weight.mul_(1e6), rate=0.05),
    classified("LargeButInRange", body=lambda: Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU()),
               change=lambda net: net.embed.weight.mul_(1e3), rate=0.05),
    case("BilinearScores", "body", function=bilinear),
    case("LogOfVariance", "body", function=log_of_variance, rate=0.005),
    # A reciprocal of numbers between 1e-9 and 1e-8, scaled.
    case("Harmonic", "body", function=lambda x: torch.reciprocal((torch.sigmoid(x) + 0.1) * 1e-8) * 1e-9),
    # SGD with Nesterov momentum and weight decay: healthy.
    case("NesterovWithDecay",
         optimizer=lambda params: SGD(params, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)),
    # Adamax, whose eps is added within a maximum, and NAdam's eps of 1e-8, which is 0 in half weights.
    case("AdamaxOptimizer", optimizer=adam(2e-3, kind=torch.optim.Adamax)),
    case("NAdamOptimizer", optimizer=adam(2e-3, kind=torch.optim.NAdam)),
    # A loss of 1e-6, whose learning rate is as much larger.
    case("LossPerSampleTiny", loss=with_mean(late(F, "l1_loss"), 1e-7),
         optimizer=lambda params: SGD(params, lr=0.05 / 1e-7, momentum=0.5)),
    # A loss that is a sum of 32 squares times 1e4: large gradients, found by a dynamic scale.
    case("SumOverBatch", rate=1e-7, loss=with_mean(functools.partial(mse, reduction="sum"), 1e4)),
    # Features are times of 1e9 seconds, from which the model subtracts the first.
    case("TimestampFeature", "0", model=net_after(lambda: Module(lambda self, x: (x - 1e9) / 64e3)),
         inputs=lambda: torch.randint(-1000, 1000, (BATCH, FEATURES)).float() * 64 + 1e9,
         targets=lambda x: wave((x - 1e9) / 64e3)),
    # Outputs of 50 with deviations of 5: healthy.
    case("PercentTargets", change=lambda net: net.head.bias.fill_(50.0), targets=lambda x: wave(x) * 5 + 50,
         rate=0.002),
    # Channels weighted by a gate: healthy.
    of_images("SqueezeAndExcite", nn.ReLU, gate, lambda: nn.AdaptiveAvgPool2d(2)),
    # A float32 mask of -1e9 made in forward and added to half scores: float32 from there on.
    case("MaskMadeInForward", "body", body=MaskedInForward),
]
# fmt: on

CASES = CHOSEN + [dataclasses.replace(row, held_out=True) for row in HELD_OUT]
