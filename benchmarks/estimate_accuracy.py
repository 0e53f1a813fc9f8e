"""Predicted memory of a training step beside what memory_report measures on this CPU: ten networks at every level.

    mlp            a feed-forward network
    cnn            convolutions with batch norm
    unet           a UNet
    resnet         a ResNet-18 (He et al. 2016), with fewer channels
    attention      a transformer whose attention matrices are written out
    sdpa           the same with scaled_dot_product_attention
    lstm           an embedding, two LSTM layers, a classifier for each token
    gan            a generator and a critic, each with its own optimizer
    detector       the detector of memory_savers.py: backbone, pyramid, shared heads
    checkpointed   the transformer `sdpa` with a checkpoint around each block
    tied           a language model whose output layer is its embedding

`predicted` is the peak of one step on fake tensors, which have no memory (`estimate(..., loss=..., device="cpu")`),
`measured` that of a real step (`memory_report`); both in MB, and the ratio. The last line has the worst ratio.

    python benchmarks/estimate_accuracy.py [--networks mlp cnn …] [--levels O0 O1 …]
"""

import argparse
import gc
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import ampcompat
from ampcompat import amp, opt_levels
from ampcompat.support.torch_compat import cpu
from ampcompat.tools.memory import fake_step

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from memory_savers import Detector, loss_of  # noqa: E402 (the file beside this one)
from seed_networks import UNet  # noqa: E402

LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")


class Residual(torch.nn.Module):
    """Two convolutions beside a shortcut, which has a convolution where the shape changes."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first = torch.nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = torch.nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(outside) for _ in range(2))
        changes = stride > 1 or inside != outside
        self.beside = torch.nn.Conv2d(inside, outside, 1, stride, bias=False) if changes else torch.nn.Identity()

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.beside(x) + self.norms[1](self.second(y)))


def resnet(width=32):
    """Return a ResNet-18."""
    widths = [width, 2 * width, 4 * width, 8 * width]
    layers = [torch.nn.Conv2d(3, width, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(width), torch.nn.ReLU()]
    layers.append(torch.nn.MaxPool2d(3, 2, 1))
    for inside, outside in zip([width] + widths, widths):
        layers += [Residual(inside, outside, 1 if inside == outside else 2), Residual(outside, outside, 1)]
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(widths[-1], 100)
    )


class Block(torch.nn.Module):
    """A block of a transformer, with attention written out or torch's own."""

    def __init__(self, width, heads, is_written_out=False):
        super().__init__()
        self.heads, self.is_written_out = heads, is_written_out
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.inside, self.outside = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def attend(self, x):
        """Attend to all places."""
        batch, length, width = x.shape
        parts = self.inside(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if self.is_written_out:
            weights = torch.matmul(query, key.transpose(-1, -2)) * query.shape[-1] ** -0.5
            found = torch.matmul(torch.softmax(weights, -1), value)
        else:
            found = F.scaled_dot_product_attention(query, key, value)
        return self.outside(found.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Transformer(torch.nn.Module):
    """An embedding, blocks, and an output layer, which may be the embedding."""

    def __init__(self, words=2000, width=128, heads=4, layers=4, written_out=False, checkpointed=False, tied=False):
        super().__init__()
        self.checkpointed = checkpointed
        self.words = torch.nn.Embedding(words, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, written_out) for _ in range(layers))
        self.head = torch.nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


class Tagger(torch.nn.Module):
    """An embedding, LSTM layers, and a classifier for each token."""

    def __init__(self, words=2000, width=128, classes=16):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.lstm = torch.nn.LSTM(width, width, 2, batch_first=True)
        self.head = torch.nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0])


def classified(shape, classes):
    """Return a loss: the cross entropy of made-up classes of random inputs of a shape."""
    return lambda model: F.cross_entropy(model(torch.randn(shape)), torch.zeros(shape[0], dtype=torch.long))


def next_token(batch, length, words):
    """Return a loss: the cross entropy of the outputs for each token against made-up ones."""

    def loss(model):
        output = model(torch.randint(0, words, (batch, length)))
        return F.cross_entropy(output.flatten(0, 1), torch.zeros(batch * length, dtype=torch.long))

    return loss


def mlp():
    """Return a feed-forward network."""
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(512, 10))


def cnn():
    """Return convolutions with batch norm."""
    layers = []
    for inside, outside in ((3, 32), (32, 64), (64, 64)):
        layers += [torch.nn.Conv2d(inside, outside, 3, 2, 1), torch.nn.BatchNorm2d(outside), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 8 * 8, 10))


#: name -> (makes the network, its loss). The GAN, with two optimizers, has a step of its own.
NETWORKS = {
    "mlp": (mlp, classified((256, 512), 10)),
    "cnn": (cnn, classified((16, 3, 64, 64), 10)),
    "unet": (lambda: UNet(width=8), lambda model: model(torch.randn(2, 1, 64, 64)).float().pow(2).mean()),
    "resnet": (resnet, classified((4, 3, 96, 96), 100)),
    "attention": (lambda: Transformer(written_out=True), next_token(4, 64, 2000)),
    "sdpa": (Transformer, next_token(4, 64, 2000)),
    "lstm": (Tagger, next_token(16, 32, 16)),
    "detector": (lambda: Detector(16, 1), lambda model: loss_of(model, torch.randn(2, 3, 96, 96))),
    "checkpointed": (lambda: Transformer(checkpointed=True, words=500), next_token(8, 64, 500)),
    "tied": (lambda: Transformer(tied=True), next_token(4, 64, 2000)),
}


def gan_step(models, optimizers):
    """Return one iteration of a GAN: a step of the critic, then one of the generator."""
    (generator, critic), (of_generator, of_critic) = models, optimizers

    def step():
        made, real = generator(torch.randn(64, 32)), torch.randn(64, 784)
        loss = F.softplus(critic(made.detach())).mean() + F.softplus(-critic(real)).mean()
        with amp.scale_loss(loss, of_critic) as scaled_loss:
            scaled_loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        with amp.scale_loss(F.softplus(-critic(made)).mean(), of_generator) as scaled_loss:
            scaled_loss.backward()
        of_generator.step()
        for each in optimizers:
            each.zero_grad()

    return step


def gan():
    """Return a generator and a critic."""
    generator = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 784))
    critic = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.LeakyReLU(0.2), torch.nn.Linear(512, 1))
    return [generator, critic]


NAMES = list(NETWORKS)[:7] + ["gan"] + list(NETWORKS)[7:]


def predicted(name, level):
    """Return the predicted peak of a network at a level, in bytes."""
    if name != "gan":
        make, loss = NETWORKS[name]
        found = ampcompat.estimate(make(), torch.optim.Adam, level, loss=loss, device="cpu")
        assert found.usage is not None, found.notes
        return found.peak_total
    _, policy = opt_levels.resolve(level)
    training = fake_step.Training(gan(), [torch.optim.Adam] * 2, gan_step, policy, {}, "cpu")
    usage, _ = fake_step.measure(training)
    return usage.at_peak.total


def measured(name, level):
    """Return the peak of a network at a level as ``memory_report`` measures it, in bytes."""
    models = gan() if name == "gan" else [NETWORKS[name][0]()]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    try:
        amp.initialize(models, optimizers, opt_level=level, verbosity=0)
        make_step = gan_step if name == "gan" else lambda *both: fake_step.loss_step(NETWORKS[name][1], 1, *both)
        return ampcompat.memory_report(models, optimizers, make_step(models, optimizers)).peak_total
    finally:
        ampcompat.reset()
        gc.collect()


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--levels", nargs="+", default=LEVELS, choices=LEVELS)
    return parser.parse_args(arguments)


def main(arguments=None):
    stated = parse(arguments)
    torch.manual_seed(0)
    emulated = [str(dtype) for dtype in (torch.float16, torch.bfloat16) if cpu.emulation(dtype)[0]]
    print(
        "torch {}, CPU, {} threads, emulated: {}".format(
            torch.__version__, torch.get_num_threads(), ", ".join(emulated)
        )
    )
    print("| network | level | predicted MB | measured MB | ratio | seconds to predict | to measure |")
    print("|---|---|---|---|---|---|---|")
    worst = 1.0
    for name in stated.networks:
        for level in stated.levels:
            began = time.perf_counter()
            expected = predicted(name, level)
            between = time.perf_counter()
            found = measured(name, level)
            ended = time.perf_counter()
            ratio = expected / found
            worst = max(worst, ratio, 1 / ratio)
            row = (name, level, expected / 1e6, found / 1e6, ratio, between - began, ended - between)
            print("| {} | {} | {:.2f} | {:.2f} | {:.4f} | {:.2f} | {:.2f} |".format(*row), flush=True)
    print(f"worst: off by {worst - 1:.2%}")


if __name__ == "__main__":
    main()
