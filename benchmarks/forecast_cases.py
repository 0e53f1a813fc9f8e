"""Small trainings for ``forecasts.py``: planted causes why half precision fails, and healthy networks of every kind.

A case is a class with what differs from a plain regression: ``function`` or ``body`` (between ``embed`` and ``head``),
or ``model``; ``inputs``, ``targets``; ``loss``; ``optimizer``; ``options`` of ``amp.initialize``. ``module`` is the one
to be named where a level fails, or None where the case plants no fault in one. The cases in the last part are held out:
they were written when the forecast's constants had been chosen with the others.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from ampcompat import amp

STEPS = 50
WIDTH, FEATURES, BATCH = 32, 8, 32

CASES = []


def case(kind):
    """Add a class to the list of cases."""
    CASES.append(kind)
    return kind


def held_out(kind):
    """Add a class to the list of cases, as one that is held out."""
    kind.held_out = True
    return case(kind)


class Body(nn.Module):
    """A module whose forward is a function of its input and its weight, a vector of ones."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.function = function

    def forward(self, x):
        return self.function(x * self.weight)


class Net(nn.Module):
    """A linear layer, a body and another linear layer."""

    def __init__(self, body, outputs=1):
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(FEATURES, WIDTH), body, nn.Linear(WIDTH, outputs)

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


class Plain:
    """The healthy regression that the cases change: y = sin of a sum, learned by SGD."""

    module = None
    held_out = False
    outputs = 1
    rate = 0.05
    momentum = 0.0
    options = {}

    def function(self, x):
        return torch.relu(x)

    def body(self):
        return Body(self.function)

    def model(self):
        return Net(self.body(), self.outputs)

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=self.rate, momentum=self.momentum)

    def inputs(self):
        return torch.randn(BATCH, FEATURES)

    def targets(self, x):
        return torch.sin(x.sum(1, keepdim=True)) + x[:, :1]

    def batch(self):
        x = self.inputs()
        return x, self.targets(x)

    def loss(self, output, target):
        return F.mse_loss(output, target)

    def train(self, level=None):
        """Train, as a script for Apex does; the level is forced from outside."""
        model = self.model()
        optimizer = self.optimizer(model.parameters())
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0, **self.options)
        for _ in range(STEPS):
            x, target = self.batch()
            optimizer.zero_grad()
            loss = self.loss(model(x), target)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()


class Classified(Plain):
    """The healthy classification: the quadrant of two features."""

    outputs = 4
    rate = 0.2

    def targets(self, x):
        return (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()

    def loss(self, output, target):
        return F.cross_entropy(output, target)


# -- values too large --------------------------------------------------------------------------------------------------


@case
class ActivationOverflows(Plain):
    """Activations of 1e5, scaled back in the same module."""

    module = "body"

    def function(self, x):
        return torch.relu(x * 1e5) / 1e5


@case
class LargeWeightsBeforeNorm(Plain):
    """Outputs of 1e6 from a layer with large weights and inputs, before a layer norm."""

    module = "embed"

    def model(self):
        net = Net(nn.Sequential(nn.LayerNorm(WIDTH), nn.ReLU()))
        with torch.no_grad():
            net.embed.weight.mul_(3e3)
        return net

    def inputs(self):
        return torch.randn(BATCH, FEATURES) * 300

    def targets(self, x):
        return super().targets(x / 300)


class Attention(nn.Module):
    """One head over the rows of a batch, with scores changed by a function."""

    def __init__(self, change=None, gain=1.0):
        super().__init__()
        self.query, self.key, self.value = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        self.change, self.gain = change, gain

    def forward(self, x):
        x = x.view(4, -1, WIDTH)
        scores = (self.query(x) * self.gain) @ self.key(x).transpose(1, 2) / math.sqrt(WIDTH)
        weights = torch.softmax(scores if self.change is None else self.change(scores), -1)
        return (x + weights @ self.value(x)).view(-1, WIDTH)


@case
class AttentionLogits(Plain):
    """Scores of attention of 1e5, from large queries."""

    module = "body"

    def body(self):
        return Attention(gain=3e5)


@case
class PowersOfActivations(Plain):
    """The fourth power of activations of about 20, scaled back."""

    module = "body"

    def function(self, x):
        y = torch.tanh(x) * 20
        y = y * y
        return y * y / 160000


@case
class LongSum(Plain):
    """A sum of 4096 numbers of 50 in half, divided afterwards."""

    module = "body"

    def function(self, x):
        total = (torch.relu(x) * 50).unsqueeze(-1).expand(-1, -1, 4096).sum(-1)
        return total / (4096 * 50)


@case
class VarianceByHand(Plain):
    """A norm by hand whose squares are 1e5."""

    module = "body"

    def function(self, x):
        y = x * 1000
        y = y - y.mean(-1, keepdim=True)
        return y / (y.pow(2).mean(-1, keepdim=True).sqrt() + 1e-3)


class Recurrence(nn.Module):
    """A linear recurrence of 12 steps, whose state grows by a factor each."""

    def __init__(self, factor):
        super().__init__()
        self.cell = nn.Linear(WIDTH, WIDTH, bias=False)
        self.factor = factor
        with torch.no_grad():
            self.cell.weight.copy_(torch.eye(WIDTH) * factor)

    def forward(self, x):
        state = x
        for _ in range(12):
            state = self.cell(state)
        return state / self.factor**12


@case
class ExplodingRecurrence(Plain):
    """A state that grows by 3 in each of 12 steps, and is divided at the end."""

    module = "body.cell"
    rate = 0.005

    def body(self):
        return Recurrence(3.0)


@case
class HealthyRecurrence(Plain):
    """A state that keeps its size."""

    rate = 0.002

    def body(self):
        return Recurrence(1.0)


@case
class CumulativeSum(Plain):
    """A cumulative sum of 1e5 in the end, then a difference."""

    module = "body"
    rate = 0.01

    def function(self, x):
        y = torch.cumsum(torch.sigmoid(x) * 1e4, -1)
        return (y[:, -1:] - y) / 1e5 + x


@case
class UnscaledInputs(Plain):
    """Features of 1e5 into a layer with small weights."""

    module = "embed"
    scale = 1e5

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.embed.weight.div_(self.scale)
        return net

    def optimizer(self, params):
        params = list(params)
        return torch.optim.SGD([{"params": params[:1], "lr": 0.0}, {"params": params[1:]}], lr=self.rate)

    def inputs(self):
        return torch.randn(BATCH, FEATURES) * self.scale

    def targets(self, x):
        return super().targets(x / self.scale)


@case
class InputsBeforeNorm(UnscaledInputs):
    """Features of 1e5 into a batch norm: fine where the function decides, not where the inputs are cast."""

    module = "0"
    rate = 0.05

    def model(self):
        return nn.Sequential(nn.BatchNorm1d(FEATURES), Net(self.body()))

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=self.rate)


@case
class ExpInModel(Plain):
    """exp of about 12, scaled afterwards."""

    module = "body"
    rate = 0.02

    def function(self, x):
        return torch.exp(torch.tanh(x) + 12) / 4e5


@case
class MaskedByMinusBillion(Plain):
    """Scores masked by -1e9, which float16 cannot hold."""

    module = "body"

    def body(self):
        return Attention(lambda scores: scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -1e9))


@case
class MaskedByMinusInfinity(Plain):
    """Scores masked by -inf: healthy."""

    def body(self):
        return Attention(lambda scores: scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf")))


@case
class MaskAdded(Plain):
    """Scores to which -1e4 is added: healthy."""

    def body(self):
        return Attention(lambda scores: scores + torch.ones_like(scores).triu(1) * -1e4)


@case
class MaskOfMinusBillionAdded(Plain):
    """Scores to which -1e9 is added: -inf in float16, and 0 after the softmax: healthy."""

    def body(self):
        return Attention(lambda scores: scores + torch.ones_like(scores).triu(1) * -1e9)


@case
class SaturatedTanh(Plain):
    """1e6 before a tanh: inf there is 1 all the same. Beside it the signal."""

    def function(self, x):
        return torch.relu(x) + 0.1 * torch.tanh(x.detach().sign() * 1e3 * 1e3)


@case
class NegativeBeforeRelu(Plain):
    """-1e6 before a relu: 0 all the same."""

    def function(self, x):
        y = torch.cat([x[:, :16], x[:, 16:].abs() * -1e6 - 1e6], -1)
        return torch.relu(y)


@case
class LargeTargets(Plain):
    """Outputs and targets of 1e5."""

    module = "head"
    rate = 1e-2

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.head.bias.fill_(1e5)
        return net

    def targets(self, x):
        return super().targets(x) * 100 + 1e5

    def loss(self, output, target):
        return F.mse_loss(output, target) * 1e-4


@case
class LargeCosines(Plain):
    """A softmax with a temperature of 1e-5."""

    module = "body"
    rate = 0.02

    def function(self, x):
        y = torch.tanh(x)
        return torch.softmax(y.detach() / 1e-5, -1) + torch.relu(x)


@case
class LargeLogits(Classified):
    """Logits of 1e5 from the last layer, divided in the loss."""

    module = "head"

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.head.weight.mul_(1e6)
        return net

    def optimizer(self, params):
        return torch.optim.SGD(list(params)[:3], lr=self.rate)

    def loss(self, output, target):
        return F.cross_entropy(output / 1e6, target)


@case
class BatchOfOutliers(Plain):
    """One row in each batch has features of 1e6, which a clamp in the model limits after the first layer."""

    module = "embed"

    def function(self, x):
        return torch.relu(x.clamp(-4, 4))

    rate = 0.02

    def optimizer(self, params):
        params = list(params)
        return torch.optim.SGD(params[2:], lr=self.rate)

    def inputs(self):
        x = super().inputs()
        x[0] *= 1e6
        return x

    def targets(self, x):
        return super().targets(x.clamp(-1, 1))


# -- gradients ---------------------------------------------------------------------------------------------------------


class ScaledLoss(Plain):
    """The loss times a number, and the learning rate divided by it."""

    factor = 1.0

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=self.rate / self.factor)

    def loss(self, output, target):
        return super().loss(output, target) * self.factor


@case
class TinyGradients(ScaledLoss):
    """Gradients of 1e-9: lost without a loss scale."""

    factor = 1e-8


@case
class TinierGradients(ScaledLoss):
    """Gradients of 1e-15: lost at the first dynamic scale too."""

    factor = 1e-15


@case
class SmallGradients(ScaledLoss):
    """Gradients of 1e-4: healthy."""

    factor = 1e-3


@case
class LargeGradients(ScaledLoss):
    """Gradients of 1e5: a dynamic scale finds its way, a static one of 1 does not."""

    factor = 3e5


@case
class HugeGradients(ScaledLoss):
    """Gradients of 1e12: a dynamic scale searches for longer than the run."""

    factor = 1e13


@case
class StaticScaleTooLow(ScaledLoss):
    """Gradients of 1e-9 with a static scale of 1."""

    factor = 1e-8
    options = {"loss_scale": 1.0}


@case
class StaticScaleTooHigh(Plain):
    """Gradients of 1 with a static scale of 2**20."""

    options = {"loss_scale": 2.0**20}


@case
class StaticScaleThatFits(Plain):
    """A static scale of 128: healthy."""

    options = {"loss_scale": 128.0}


@case
class MeanOverMany(Plain):
    """A mean over 2**18 outputs, so that the gradient of each is 1e-7 and less."""

    def targets(self, x):
        return super().targets(x) * 0.1

    def loss(self, output, target):
        return F.mse_loss(output.expand(-1, 2**18 // BATCH), target.expand(-1, 2**18 // BATCH))


@case
class SmallBranch(Plain):
    """A branch of 1e-6 of the signal: what becomes 0 there is not missed."""

    def function(self, x):
        return torch.relu(x) + 1e-6 * torch.tanh(x)


@case
class SignalMadeSmall(Plain):
    """Activations of 1e-9, made large again by a norm."""

    module = "body"

    def function(self, x):
        y = torch.relu(x) * 1e-9
        return y * 1e9


# -- updates -----------------------------------------------------------------------------------------------------------


@case
class LargeWeightsSmallUpdates(Plain):
    """A bias of 1000 that moves by 0.1 per step, under half a unit of the last place."""

    module = "head"
    rate = 0.02

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.head.bias.fill_(1000.0)
        return net

    def optimizer(self, params):
        params = list(params)
        return torch.optim.SGD([{"params": params[:-1], "lr": 0.0}, {"params": params[-1:]}], lr=self.rate)

    def targets(self, x):
        return super().targets(x) * 0.1 + 1006.0


class Gain(nn.Module):
    """A vector of weights of 1 that multiplies a large number."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 8.0))

    def forward(self, x):
        return x * self.weight


@case
class SlowGain(Plain):
    """A gain of 8 that moves by 1e-3 per step, of features about 100."""

    module = "1"
    rate = 2e-7

    def model(self):
        return nn.Sequential(nn.Identity(), Gain())

    def inputs(self):
        return torch.rand(BATCH, 1) * 50 + 50

    def targets(self, x):
        return x * 8.2


@case
class FastGain(SlowGain):
    """The same gain with a large learning rate: healthy."""

    module = None
    rate = 2e-5

    def targets(self, x):
        return x * 12


@case
class Momentum(Plain):
    """SGD with momentum: healthy."""

    rate = 0.02
    momentum = 0.9


@case
class SlowRate(Plain):
    """A learning rate of 1e-6: no level makes progress, and none is worse."""

    rate = 1e-6


# -- epsilons ----------------------------------------------------------------------------------------------------------


@case
class AdamWithItsEpsilon(Plain):
    """Adam's eps of 1e-8 is 0 in half weights."""

    def optimizer(self, params):
        return torch.optim.Adam(params, lr=1e-2)


@case
class AdamWithLargeEpsilon(Plain):
    """Adam with an eps of 1e-3 and gradients of 10."""

    def optimizer(self, params):
        return torch.optim.Adam(params, lr=1e-2, eps=1e-3)

    def loss(self, output, target):
        return super().loss(output, target) * 30


@case
class RMSpropWithItsEpsilon(Plain):
    """RMSprop's eps of 1e-8 is 0 in half weights."""

    def optimizer(self, params):
        return torch.optim.RMSprop(params, lr=1e-3)


@case
class AdagradWithItsEpsilon(Plain):
    """Adagrad's eps of 1e-10 is 0 in half weights, as is the gradient of a dead unit."""

    def optimizer(self, params):
        return torch.optim.Adagrad(params, lr=1e-2)

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.embed.bias[:4] = -100.0
        return net


class WithZeroRows(Plain):
    """A batch in which some rows are 0."""

    module = "body"

    def inputs(self):
        x = super().inputs()
        x[:3] = 0
        return x

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.embed.bias.zero_()
        return net

    def optimizer(self, params):
        named = list(params)
        return torch.optim.SGD([each for each in named if each is not named[1]], lr=self.rate)


@case
class RootMeanSquareByHand(WithZeroRows):
    """x * rsqrt(mean(x**2) + 1e-8) of a row of zeros."""

    def function(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8)


@case
class RootMeanSquareWithLargeEpsilon(WithZeroRows):
    """x * rsqrt(mean(x**2) + 1e-3) of a row of zeros: healthy."""

    module = None

    def function(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)


@case
class DividedByNorm(WithZeroRows):
    """x / (|x| + 1e-8) of a row of zeros."""

    rate = 0.02

    def function(self, x):
        return x / (x.abs().sum(-1, keepdim=True) + 1e-8)


@case
class NormalizedRows(WithZeroRows):
    """F.normalize, whose eps is 1e-12, of a row of zeros."""

    def function(self, x):
        return F.normalize(x, dim=-1) * 3


@case
class LogOfProbability(Classified):
    """log(p + 1e-8) of probabilities that are 0 in float16, in the model."""

    module = "body"
    rate = 0.02

    def function(self, x):
        p = torch.softmax(x * 40, -1)
        return torch.log(p + 1e-8) / 10


@case
class RootOfSmall(Plain):
    """sqrt(relu(x) + 1e-12), whose derivative is infinite at 0."""

    module = "body"

    def function(self, x):
        return torch.sqrt(torch.relu(x) * 0.5 + 1e-12)

    rate = 1e-8


@case
class LayerNormWithTinyEpsilon(Plain):
    """A layer norm with the eps of 1e-12 of BERT: computed in float32 inside, healthy."""

    def body(self):
        return nn.Sequential(nn.LayerNorm(WIDTH, eps=1e-12), nn.ReLU())


@case
class LayerNormWithLargeEpsilon(Plain):
    """A layer norm with an eps of 1: healthy."""

    def body(self):
        return nn.Sequential(nn.LayerNorm(WIDTH, eps=1.0), nn.ReLU())


# -- losses ------------------------------------------------------------------------------------------------------------


class ModelWithLoss(nn.Module):
    """A model that returns its loss."""

    def __init__(self, net, criterion):
        super().__init__()
        self.net, self.criterion = net, criterion

    def forward(self, x, target):
        return self.criterion(self.net(x), target)


class LossInModel(Plain):
    """A loss that the model computes."""

    criterion = staticmethod(F.mse_loss)

    def model(self):
        return ModelWithLoss(super().model(), self.criterion)

    def batch(self):
        x = self.inputs()
        return x, self.targets(x)

    def train(self, level=None):
        model = self.model()
        optimizer = self.optimizer(model.parameters())
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0, **self.options)
        for _ in range(STEPS):
            x, target = self.batch()
            optimizer.zero_grad()
            loss = model(x, target)
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()


@case
class LossInHalf(LossInModel):
    """A loss in half of differences about 1: healthy."""


@case
class SquaresInHalf(LossInModel):
    """Differences of 1000, squared in half where the table does not decide."""

    module = ""
    rate = 1e-5

    @staticmethod
    def criterion(output, target):
        return F.mse_loss(output, target * 1000) * 1e-3


@case
class SquaresByHand(LossInModel):
    """Differences of 1000 between two half outputs, squared by multiplication."""

    module = ""
    rate = 1e-8

    @staticmethod
    def criterion(output, target):
        difference = (output - output.flip(0) * 2) * 1000
        return (difference * difference).mean() + (output.float() - target.float()).pow(2).mean()


class BinaryClassified(Plain):
    """Two classes."""

    rate = 0.2

    def targets(self, x):
        return (x[:, :1] > 0).float()


@case
class BinaryCrossEntropy(BinaryClassified):
    """binary_cross_entropy of a sigmoid, which O1 refuses."""

    module = ""

    def model(self):
        return nn.Sequential(Net(self.body()), nn.Sigmoid())

    def loss(self, output, target):
        return F.binary_cross_entropy(output, target)


@case
class BinaryCrossEntropyWithLogits(BinaryClassified):
    """The same from logits: healthy."""

    def loss(self, output, target):
        return F.binary_cross_entropy_with_logits(output, target)


@case
class Huber(Plain):
    """A Huber loss: healthy."""

    def loss(self, output, target):
        return F.smooth_l1_loss(output, target)


@case
class Distilled(Classified):
    """A divergence from a teacher at temperature 4: healthy."""

    def targets(self, x):
        return torch.softmax(x[:, :4] * 3, -1)

    def loss(self, output, target):
        return F.kl_div(F.log_softmax(output, -1), target, reduction="batchmean")


# -- rounding ----------------------------------------------------------------------------------------------------------


@case
class OffsetOfInputs(Plain):
    """Features of 30000 with a deviation of 1, into a layer norm."""

    module = "0"
    offset = 3e4

    def model(self):
        return nn.Sequential(nn.BatchNorm1d(FEATURES), Net(self.body()))

    def inputs(self):
        return torch.randn(BATCH, FEATURES) + self.offset

    def targets(self, x):
        return super().targets(x - self.offset)


@case
class SmallOffsetOfInputs(OffsetOfInputs):
    """Features of 30 with a deviation of 1: healthy."""

    module = None
    offset = 30.0


@case
class OffsetWithin(Plain):
    """A difference of two numbers of 10000 that are 1 apart."""

    module = "body"

    def function(self, x):
        y = torch.relu(x) + 2e4
        return y - 2e4


@case
class LargePhase(Plain):
    """The sine of an angle of 10000."""

    module = "body"
    rate = 1e-2

    def function(self, x):
        angle = x.detach() * 2e4
        return torch.sin(angle) * 0.3 + torch.relu(x)

    def targets(self, x):
        return x[:, :1] * 0.5


@case
class OffsetOfLogits(Classified):
    """Logits of 20000 with differences of 1."""

    module = "head"

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.head.bias.fill_(2e4)
        return net


@case
class OutputsNearOffset(Plain):
    """Outputs of 5000 with deviations of 1."""

    module = "head"
    rate = 0.02

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.head.bias.fill_(5e3)
        return net

    def targets(self, x):
        return super().targets(x) + 5e3


@case
class OutputsNearSmallOffset(Plain):
    """Outputs of 20 with deviations of 1: healthy."""

    rate = 0.02

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.head.bias.fill_(20.0)
        return net

    def targets(self, x):
        return super().targets(x) + 20


# -- dtypes ------------------------------------------------------------------------------------------------------------


class OwnState(nn.Module):
    """A cell whose first state is made in forward, in float32."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        state = torch.zeros(x.shape[0], WIDTH)
        for _ in range(3):
            state = torch.tanh(self.cell(torch.cat([x, state], -1)))
        return state


@case
class StateInFloat32(Plain):
    """A float32 tensor made in forward meets half weights."""

    module = "body.cell"

    def body(self):
        return OwnState()


class OwnStateLikeInput(OwnState):
    """The same with the input's dtype."""

    def forward(self, x):
        state = x.new_zeros(x.shape[0], WIDTH)
        for _ in range(3):
            state = torch.tanh(self.cell(torch.cat([x, state], -1)))
        return state


@case
class StateLikeInput(Plain):
    """A tensor made with the input's dtype: healthy."""

    def body(self):
        return OwnStateLikeInput()


@case
class CastBack(Plain):
    """A norm in float32 that casts back to the dtype of its input: healthy."""

    def function(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


# -- healthy networks of every kind ------------------------------------------------------------------------------------


@case
class HealthyRegression(Plain):
    """Two layers, SGD."""


@case
class HealthyClassification(Classified):
    """Two layers, SGD."""


@case
class DeepResidual(Plain):
    """Eight residual blocks."""

    rate = 0.01

    def body(self):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                return x + self.outer(torch.relu(self.inner(x)))

        return nn.Sequential(*[Block() for _ in range(8)])


@case
class BatchNorm(Classified):
    """Layers with batch norm."""

    def body(self):
        return nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))


@case
class Convolutions(Classified):
    """Two convolutions with batch norm on images of 8 by 8."""

    def model(self):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip

    def inputs(self):
        return torch.randn(BATCH, 1, 8, 8)

    def targets(self, x):
        return (x[:, 0, :4].mean((1, 2)) > 0).long() * 2 + (x[:, 0, 4:].mean((1, 2)) > 0).long()


class Last(nn.Module):
    """A recurrent layer, of whose outputs the last counts."""

    def __init__(self, kind):
        super().__init__()
        self.layer = kind(FEATURES, WIDTH, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0][:, -1]


@case
class LongShortTerm(Plain):
    """An LSTM over six steps."""

    rate = 0.1
    kind = nn.LSTM

    def model(self):
        return nn.Sequential(Last(self.kind), nn.Linear(WIDTH, 1))

    def inputs(self):
        return torch.randn(BATCH, 6, FEATURES)

    def targets(self, x):
        return x[:, -1, :1] + 0.5 * x[:, -2, :1]


@case
class GatedRecurrent(LongShortTerm):
    """A GRU."""

    kind = nn.GRU


@case
class Transformer(Plain):
    """An encoder layer of torch, AdamW."""

    def body(self):
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True)

        class Rows(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                return self.layer(x.view(4, -1, WIDTH)).reshape(-1, WIDTH)

        return Rows()

    def optimizer(self, params):
        return torch.optim.AdamW(params, lr=3e-3)


@case
class HealthyAttention(Plain):
    """One head of attention."""

    def body(self):
        return Attention()


@case
class FusedAttention(Plain):
    """scaled_dot_product_attention."""

    def function(self, x):
        y = x.view(4, 1, -1, WIDTH)
        return x + F.scaled_dot_product_attention(y, y, y).reshape(-1, WIDTH)


@case
class Embedded(Classified):
    """The mean of embeddings."""

    def model(self):
        class Bag(nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 4)

            def forward(self, x):
                return self.head(self.table(x).mean(1))

        return Bag()

    def inputs(self):
        return torch.randint(20, (BATCH, 3))

    def targets(self, x):
        return x[:, 0] % 4 // 1

    rate = 0.5


@case
class Dropout(Plain):
    """Dropout of a half."""

    def body(self):
        return nn.Sequential(nn.ReLU(), nn.Dropout(0.5))


@case
class SmoothActivations(Plain):
    """GELU, SiLU and softplus."""

    def body(self):
        return nn.Sequential(nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.Softplus())


@case
class Autoencoder(Plain):
    """The inputs as targets, through four units."""

    outputs = FEATURES

    def body(self):
        return nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, WIDTH), nn.ReLU())

    def targets(self, x):
        return x * 0.5


@case
class TiedWeights(Plain):
    """One layer used twice."""

    def body(self):
        layer = nn.Linear(WIDTH, WIDTH)
        return nn.Sequential(layer, nn.ReLU(), layer)


@case
class KeptByScript(ActivationOverflows):
    """The overflowing body, kept in float32 by the script already."""

    module = None
    options = {"keep_fp32": ["body"]}


# -- more of all kinds -------------------------------------------------------------------------------------------------


@case
class CubeOfActivations(Plain):
    """The cube of 100 in half, by multiplication."""

    module = "body"

    def function(self, x):
        y = (torch.tanh(x) * 100).to(x.dtype)
        return y * y * y / 1e6 + torch.relu(x)


class Expanding(nn.Module):
    """Two linear layers, of which the first multiplies by some thousands and the second divides."""

    def __init__(self, gain):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            self.up.weight.mul_(gain)
            self.down.weight.div_(gain)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@case
class WideRange(Plain):
    """Activations of 1e6 between two layers that do not learn."""

    module = "body.up"

    def body(self):
        return Expanding(1e6)

    def optimizer(self, params):
        params = list(params)
        return torch.optim.SGD(params[:2] + params[-2:], lr=self.rate)


@case
class ModerateRange(WideRange):
    """The same with activations of 1e3: healthy."""

    module = None

    def body(self):
        return Expanding(1e3)


@case
class ConvolutionOverflows(Plain):
    """A convolution with weights of 1e4 over inputs of 100, then a group norm."""

    module = "0"

    def model(self):
        net = nn.Sequential(
            nn.Conv1d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * FEATURES, 1)
        )
        with torch.no_grad():
            net[0].weight.mul_(1e4)
        return net

    def inputs(self):
        return torch.randn(BATCH, 1, FEATURES) * 100

    def targets(self, x):
        return x[:, 0, :1] / 100


@case
class HealthyConvolution(ConvolutionOverflows):
    """The same with inputs and weights of 1."""

    module = None

    def model(self):
        net = super().model()
        with torch.no_grad():
            net[0].weight.div_(1e4)
        return net

    def inputs(self):
        return torch.randn(BATCH, 1, FEATURES)

    def targets(self, x):
        return x[:, 0, :1]


@case
class ProductOfFeatures(Plain):
    """An outer product of activations of 500, summed."""

    module = "body"
    rate = 0.02

    def function(self, x):
        y = torch.tanh(x) * 500
        return torch.bmm(y.unsqueeze(2), y.unsqueeze(1)).mean(2) / 2.5e5 + x


@case
class GatedBySigmoid(Plain):
    """A gate of 1e6 before a sigmoid: healthy."""

    def function(self, x):
        return torch.relu(x) * torch.sigmoid(x.detach() * 1e6)


@case
class ClampedActivations(Plain):
    """1e6, clamped to 6: healthy."""

    def function(self, x):
        return torch.clamp(x.detach() * 1e6, -6, 6) * 0.1 + torch.relu(x)


@case
class NormOfLargeVector(Plain):
    """Squares of 1e6, summed by hand, for a root."""

    module = "body"

    def function(self, x):
        y = x * 1e3
        return y / (y * y).sum(-1, keepdim=True).add(1.0).sqrt() * 3


@case
class SmallDenominator(Plain):
    """A quotient of two numbers of 1e-9."""

    module = "body"

    def function(self, x):
        small = (x.abs() + 1) * 1e-9
        return torch.relu(x) * 1e-9 / small


@case
class SmallInputs(Plain):
    """Features of 1e-9 that a large first weight makes 1."""

    module = "embed"

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.embed.weight.mul_(1e9)
        return net

    def optimizer(self, params):
        return torch.optim.SGD(list(params)[1:], lr=self.rate)

    def inputs(self):
        return torch.randn(BATCH, FEATURES) * 1e-9

    def targets(self, x):
        return super().targets(x * 1e9)


@case
class TinyGradientsOfAdam(Plain):
    """Gradients of 1e-10 with an Adam whose eps is smaller still."""

    def optimizer(self, params):
        return torch.optim.Adam(params, lr=1e-2, eps=1e-16)

    def loss(self, output, target):
        return super().loss(output, target) * 1e-10


@case
class GradientsOfMillions(ScaledLoss):
    """Gradients of 1e8."""

    factor = 1e8


@case
class ScaleOf1024(ScaledLoss):
    """Small gradients with a static scale of 1024: healthy."""

    factor = 1e-3
    options = {"loss_scale": 1024.0}


@case
class ScaleForHugeGradients(ScaledLoss):
    """Gradients of 1e5 with a static scale of 64."""

    factor = 1e4
    options = {"loss_scale": 64.0}


@case
class AdamWithMiddlingEpsilon(Plain):
    """Adam with an eps of 1e-6 and gradients of 1e-3: their squares are 0 in half."""

    def optimizer(self, params):
        return torch.optim.Adam(params, lr=1e-2, eps=1e-6)

    def loss(self, output, target):
        return super().loss(output, target) * 1e-3


@case
class MomentumOfLargeWeights(Plain):
    """A bias of 300 that SGD with momentum moves by 0.01 per step."""

    module = "head"
    rate = 2e-4
    momentum = 0.9

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.head.bias.fill_(300.0)
        return net

    def optimizer(self, params):
        return torch.optim.SGD(list(params)[-1:], lr=self.rate, momentum=self.momentum)

    def targets(self, x):
        return super().targets(x) + 303.0


@case
class StandardizedByHand(Plain):
    """(x - mean) / (std + 1e-9) of columns that are constant in a quarter of the batch's columns."""

    def function(self, x):
        y = torch.cat([torch.relu(x[:, :24]), x[:, 24:] * 0 + 0.5], -1)
        return (y - y.mean(0)) / (y.var(0, unbiased=False) + 1e-9).sqrt()

    module = "body"
    rate = 0.01


@case
class InverseSquareRoot(Plain):
    """rsqrt of sums of squares with an eps of 1e-5: healthy."""

    def function(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


@case
class EntropyOfWeights(Classified):
    """p log p of a sharp softmax with an eps of 1e-10, in the model."""

    module = "body"

    def function(self, x):
        p = torch.softmax(x * 60, -1)
        return p * torch.log(p + 1e-10) + torch.relu(x)


@case
class LargeOffsetOfInputs(OffsetOfInputs):
    """Features of 2000 with a deviation of 1: lost in bfloat16, not in float16."""

    offset = 2e3


@case
class RunningDifference(Plain):
    """Differences between neighbours of a sum that has grown to some thousands."""

    module = "body"

    def function(self, x):
        total = torch.cumsum(torch.sigmoid(x) + 300, -1)
        return torch.cat([x[:, :1], total[:, 1:] - total[:, :-1] - 300], -1)


@case
class PositionsInFloat32(Plain):
    """Positions from arange, in float32, that a layer gets with the half features."""

    module = "body.layer"

    def body(self):
        class WithPositions(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(WIDTH + 1, WIDTH)

            def forward(self, x):
                positions = torch.arange(x.shape[0]).unsqueeze(1) / x.shape[0]
                return torch.relu(self.layer(torch.cat([x, positions], -1)))

        return WithPositions()


@case
class FilledByHand(Plain):
    """A mask of 1e30 written into half scores."""

    module = "body"

    def body(self):
        return Attention(lambda scores: scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -1e30))


@case
class CellInFloat32(Plain):
    """A GRU cell whose state is made like its input: healthy."""

    rate = 0.1

    def body(self):
        class Cell(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.GRUCell(WIDTH, WIDTH)

            def forward(self, x):
                return self.cell(x, self.cell(x, torch.zeros_like(x)))

        return Cell()


@case
class SeparableConvolutions(Convolutions):
    """Grouped convolutions with batch norm and SiLU."""

    def model(self):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.SiLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip


@case
class MultiHead(Plain):
    """nn.MultiheadAttention with SGD."""

    def body(self):
        class Heads(nn.Module):
            def __init__(self):
                super().__init__()
                self.heads = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

            def forward(self, x):
                x = x.view(4, -1, WIDTH)
                return (x + self.heads(x, x, x, need_weights=False)[0]).reshape(-1, WIDTH)

        return Heads()


@case
class Mixture(Plain):
    """Two branches mixed by a learned softmax."""

    def body(self):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate, self.left, self.right = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                gate = torch.softmax(self.gate(x), -1)
                return gate[:, :1] * torch.relu(self.left(x)) + gate[:, 1:] * torch.tanh(self.right(x))

        return Mixed()


@case
class CosineLoss(Plain):
    """A cosine embedding loss between two vectors."""

    outputs = 8

    def targets(self, x):
        return x

    def loss(self, output, target):
        return (1 - F.cosine_similarity(output, target)).mean()


@case
class LabelsSmoothed(Classified):
    """Cross-entropy with smoothed labels and weight decay."""

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=self.rate, weight_decay=1e-3)

    def loss(self, output, target):
        return F.cross_entropy(output, target, label_smoothing=0.1)


@case
class LargeClassWeights(Classified):
    """Logits of 3e5 whose differences count, from weights of 1e6."""

    module = "head"

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.head.weight.mul_(3e6)
        return net

    def optimizer(self, params):
        return torch.optim.SGD(list(params)[3:4], lr=0.0)


# -- held out ----------------------------------------------------------------------------------------------------------


@held_out
class SquareBeforeMean(Plain):
    """A mean of squares of 600, by pow, in the model; then its root."""

    module = "body"

    def function(self, x):
        y = torch.tanh(x) * 600
        return y / (torch.mean(torch.square(y), -1, keepdim=True) + 1).sqrt()


@held_out
class BatchNormAfterLargeLayer(Classified):
    """A layer that returns 1e6, before batch norm."""

    module = "embed"
    rate = 0.05

    def model(self):
        net = Net(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU()), self.outputs)
        with torch.no_grad():
            net.embed.weight.mul_(1e6)
        return net


@held_out
class LargeButInRange(Classified):
    """The same with 1e3: healthy."""

    rate = 0.05

    def model(self):
        net = Net(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU()), self.outputs)
        with torch.no_grad():
            net.embed.weight.mul_(1e3)
        return net


@held_out
class BilinearScores(Plain):
    """einsum of two activations of 400 over 32 units."""

    module = "body"

    def function(self, x):
        y = torch.tanh(x) * 400
        return torch.einsum("bi,bj->bij", y, y).sum(-1) / 1e6 + torch.relu(x)


@held_out
class LogOfVariance(Plain):
    """log(var + 1e-9) of rows of which some are constant."""

    module = "body"
    rate = 0.005

    def function(self, x):
        y = x.detach() * (torch.arange(len(x), device=x.device)[:, None] > 2)
        return torch.relu(x) + 0.1 * torch.log(y.pow(2).mean(-1, keepdim=True) + 1e-9).tanh()


@held_out
class Harmonic(Plain):
    """A reciprocal of numbers between 1e-9 and 1e-8, scaled."""

    module = "body"

    def function(self, x):
        return torch.reciprocal((torch.sigmoid(x) + 0.1) * 1e-8) * 1e-9


@held_out
class NesterovWithDecay(Plain):
    """SGD with Nesterov momentum and weight decay: healthy."""

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)


@held_out
class AdamaxOptimizer(Plain):
    """Adamax, whose eps is added within a maximum."""

    def optimizer(self, params):
        return torch.optim.Adamax(params, lr=2e-3)


@held_out
class NAdamOptimizer(Plain):
    """NAdam's eps of 1e-8 is 0 in half weights."""

    def optimizer(self, params):
        return torch.optim.NAdam(params, lr=2e-3)


@held_out
class LossPerSampleTiny(Plain):
    """A loss of 1e-6, whose learning rate is as much larger."""

    factor = 1e-7

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=self.rate / self.factor, momentum=0.5)

    def loss(self, output, target):
        return F.l1_loss(output, target) * self.factor


@held_out
class SumOverBatch(Plain):
    """A loss that is a sum of 32 squares times 1e4: large gradients, found by a dynamic scale."""

    rate = 1e-7

    def loss(self, output, target):
        return F.mse_loss(output, target, reduction="sum") * 1e4


@held_out
class TimestampFeature(Plain):
    """One feature is a time of 1e9 seconds, from which the model subtracts the first."""

    module = "0"

    def model(self):
        class Centered(nn.Module):
            def forward(self, x):
                return (x - 1e9) / 64e3

        return nn.Sequential(Centered(), Net(self.body()))

    def inputs(self):
        return torch.randint(-1000, 1000, (BATCH, FEATURES)).float() * 64 + 1e9

    def targets(self, x):
        return super().targets((x - 1e9) / 64e3)


@held_out
class PercentTargets(Plain):
    """Outputs of 50 with deviations of 5: healthy."""

    rate = 0.002

    def model(self):
        net = super().model()
        with torch.no_grad():
            net.head.bias.fill_(50.0)
        return net

    def targets(self, x):
        return super().targets(x) * 5 + 50


@held_out
class SqueezeAndExcite(Convolutions):
    """Channels weighted by a gate: healthy."""

    def model(self):
        class Gate(nn.Module):
            def __init__(self):
                super().__init__()
                self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)

            def forward(self, x):
                return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3))))))[:, :, None, None]

        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Gate(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip


@held_out
class MaskMadeInForward(Plain):
    """A float32 mask of -1e9 made in forward and added to half scores: float32 from there on."""

    module = "body"

    def body(self):
        class Masked(Attention):
            def forward(self, x):
                x = x.view(4, -1, WIDTH)
                mask = torch.triu(torch.full((x.shape[1], x.shape[1]), -1e9), 1)
                weights = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) / 6 + mask, -1)
                return (x + torch.bmm(weights, self.value(x))).view(-1, WIDTH)

        return Masked()
