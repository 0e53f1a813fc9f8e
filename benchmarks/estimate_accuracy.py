"""Predicted memory of a training step beside what memory_report measures on this CPU: ten networks at every level.

    mlp            a feed-forward network
    cnn            convolutions with batch norm
    unet           a UNet
    resnet         a ResNet-18 (He et al. 2016), with fewer channels
    attention      a transformer whose attention matrices are written out
    sdpa           the same with scaled_dot_product_attention
    lstm           an embedding, two LSTM layers, a classifier for each token
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
from ampcompat import amp
from ampcompat.support.torch_compat import cpu


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


#: name -> (makes the network, its loss).
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


def predicted(name, level):
    """Return the predicted peak of a network at a level, in bytes."""
    make, loss = NETWORKS[name]
    return ampcompat.estimate(make(), torch.optim.Adam, level, loss=loss, device="cpu").peak_total


def measured(name, level):
    """Return the peak of a network at a level as ``memory_report`` measures it, in bytes."""
    make, loss = NETWORKS[name]
    model = make()
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        bench.by_amp(optimizer, loss(model))
        optimizer.zero_grad()

    try:
        amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        return ampcompat.memory_report(model, optimizer, step).peak_total
    finally:
        ampcompat.reset()
        gc.collect()


def main(arguments=None):
    choices = {"networks": list(NETWORKS), "levels": bench.LEVELS}
    stated = bench.options(__doc__, arguments, **choices, choices=choices)
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
