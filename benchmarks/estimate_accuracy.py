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

import gc

import bench
import torch
import torch.nn.functional as F
from networks import Detector, Recurrent, Residual, Transformer, UNet, detector_loss, perceptron

import ampcompat
from ampcompat import amp, opt_levels
from ampcompat.support.torch_compat import cpu
from ampcompat.tools.memory import fake_step


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


def classified(shape, classes):
    """Return a loss: the cross entropy of made-up classes of random inputs of a shape."""
    return lambda model: F.cross_entropy(model(torch.randn(shape)), torch.zeros(shape[0], dtype=torch.long))


def next_token(batch, length, words):
    """Return a loss: the cross entropy of the outputs for each token against made-up ones."""

    def loss(model):
        output = model(torch.randint(0, words, (batch, length)))
        return F.cross_entropy(output.flatten(0, 1), torch.zeros(batch * length, dtype=torch.long))

    return loss


def cnn():
    """Return convolutions with batch norm."""
    layers = []
    for inside, outside in ((3, 32), (32, 64), (64, 64)):
        layers += [torch.nn.Conv2d(inside, outside, 3, 2, 1), torch.nn.BatchNorm2d(outside), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 8 * 8, 10))


#: name -> (makes the network, its loss). The GAN, with two optimizers, has a step of its own.
NETWORKS = {
    "mlp": (lambda: perceptron(*[512] * 5, last=10), classified((256, 512), 10)),
    "cnn": (cnn, classified((16, 3, 64, 64), 10)),
    "unet": (lambda: UNet(width=8), lambda model: model(torch.randn(2, 1, 64, 64)).float().pow(2).mean()),
    "resnet": (resnet, classified((4, 3, 96, 96), 100)),
    "attention": (lambda: Transformer(written_out=True), next_token(4, 64, 2000)),
    "sdpa": (Transformer, next_token(4, 64, 2000)),
    "lstm": (lambda: Recurrent(128, 128, 16, words=2000), next_token(16, 32, 16)),
    "detector": (lambda: Detector(16, 1), lambda model: detector_loss(model, torch.randn(2, 3, 96, 96))),
    "checkpointed": (lambda: Transformer(checkpointed=True, words=500), next_token(8, 64, 500)),
    "tied": (lambda: Transformer(tied=True), next_token(4, 64, 2000)),
}


def gan_step(models, optimizers):
    """Return one iteration of a GAN: a step of the critic, then one of the generator."""
    (generator, critic), (of_generator, of_critic) = models, optimizers

    def step():
        made, real = generator(torch.randn(64, 32)), torch.randn(64, 784)
        loss = F.softplus(critic(made.detach())).mean() + F.softplus(-critic(real)).mean()
        bench.by_amp(of_critic, loss)
        of_generator.zero_grad()
        bench.by_amp(of_generator, F.softplus(-critic(made)).mean())
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


def main(arguments=None):
    stated = bench.options(
        __doc__, arguments, networks=NAMES, levels=bench.LEVELS, choices={"networks": NAMES, "levels": bench.LEVELS}
    )
    torch.manual_seed(0)
    emulated = [str(dtype) for dtype in (torch.float16, torch.bfloat16) if cpu.emulation(dtype)[0]]
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, CPU, {threads} threads, emulated: {', '.join(emulated)}")
    bench.heading("network", "level", "predicted MB", "measured MB", "ratio", "seconds to predict", "to measure")
    worst = 1.0
    for name in stated.networks:
        for level in stated.levels:
            expected, first = bench.timed(predicted, name, level)
            real, seconds = bench.timed(measured, name, level)
            worst = max(worst, expected / real, real / expected)
            cells = [f"{expected / 1e6:.2f}", f"{real / 1e6:.2f}", f"{expected / real:.4f}"]
            bench.row(name, level, *cells, f"{first:.2f}", f"{seconds:.2f}")
    print(f"worst: off by {worst - 1:.2%}")


if __name__ == "__main__":
    main()
