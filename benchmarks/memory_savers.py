"""Memory and time of training a small detector: base, mixed precision, accumulation, checkpointing, all together; and
what is saved for the backward pass moved to the CPU (offloading, ``torch.autograd.graph.save_on_cpu``).

The network is a RetinaNet in small: a residual backbone of four stages, a feature pyramid over the last three, and
two heads that share their weights between the levels of the pyramid. Its targets are made up; what is measured does
not depend on them.

Each row trains by itself. In a step of the base the optimizer gets ``--batch`` images; with accumulation it steps
after ``--accumulate`` such batches (as in MMCV's table: what an iteration costs stays), or, with ``--same-batch``,
after parts of one batch.

    memory      the most bytes that tensors hold at any operation of an iteration (on a GPU: from the allocator)
    saved       the bytes that a forward pass keeps on the device for the backward pass: activations, half copies
    on a GPU    the peak of a step on a GPU as `ampcompat.estimate` predicts it, and what is offloaded
    time        of an iteration (one forward and backward pass, and a step if it is due)

Where the device is the CPU itself, offloading copies within one memory, and saves nothing but on the predicted GPU.

The rows are interleaved, so that changes of the machine's speed affect all of them. Ratios are to the base, medians
over the rounds.

    python benchmarks/memory_savers.py [--size 256] [--batch 4] [--accumulate 2] [--device cuda]
"""

import argparse
import contextlib
import gc
import itertools
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import ampcompat
from ampcompat import amp

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from memory import HighWater  # noqa: E402 (the file beside this one)

ANCHORS, CLASSES = 3, 20


class Block(torch.nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.norm1 = torch.nn.Conv2d(width, width, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(width)
        self.conv2, self.norm2 = torch.nn.Conv2d(width, width, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def stage(inside, outside, blocks):
    """Return a convolution with a stride, and blocks."""
    entry = torch.nn.Conv2d(inside, outside, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(outside), torch.nn.ReLU()
    return torch.nn.Sequential(*entry + tuple(Block(outside) for _ in range(blocks)))


class Detector(torch.nn.Module):
    """Backbone, pyramid and heads. Images to (class logits, box offsets) over all positions of all levels."""

    def __init__(self, width=32, blocks=2, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        sizes = [width, 2 * width, 4 * width, 4 * width]
        self.stem = torch.nn.Conv2d(3, width, 7, 2, 3)
        self.stages = torch.nn.ModuleList(stage(i, o, blocks) for i, o in zip([width] + sizes, sizes))
        self.lateral = torch.nn.ModuleList(torch.nn.Conv2d(size, 2 * width, 1) for size in sizes[1:])
        self.smooth = torch.nn.ModuleList(torch.nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in sizes[1:])
        self.classes = self.make_head(2 * width, ANCHORS * CLASSES)
        self.boxes = self.make_head(2 * width, ANCHORS * 4)

    @staticmethod
    def make_head(width, outputs):
        """Return two convolutions and the one that predicts."""
        body = [layer for _ in range(2) for layer in (torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.ReLU())]
        return torch.nn.Sequential(*(body + [torch.nn.Conv2d(width, outputs, 3, padding=1)]))

    def run(self, part, x):
        """Run a part of the network, perhaps without keeping what is inside."""
        return checkpoint(part, x, use_reentrant=False) if self.checkpointed else part(x)

    def forward(self, images):
        x, features = self.stem(images), []
        for part in self.stages:
            x = self.run(part, x)
            features.append(x)
        levels, above = [], None
        for feature, lateral, smooth in list(zip(features[1:], self.lateral, self.smooth))[::-1]:
            beside = lateral(feature)
            above = beside if above is None else beside + F.interpolate(above, size=feature.shape[2:])
            levels.append(smooth(above))
        predict = [self.run(self.classes, level).flatten(2) for level in levels]
        boxes = [self.run(self.boxes, level).flatten(2) for level in levels]
        return torch.cat(predict, 2), torch.cat(boxes, 2)


def loss_of(model, images):
    """Return a focal loss against empty images, and a smooth distance of the boxes."""
    logits, boxes = model(images)
    chance = torch.sigmoid(logits.float())
    focal = (chance.pow(2) * F.softplus(logits.float())).mean()
    return focal + F.smooth_l1_loss(boxes.float(), torch.ones_like(boxes, dtype=torch.float32))


class Row:
    """One way to train, ready to do iterations.

    Args:
        level: "O0" for the base.
        accumulate: iterations per step, 1 for the base.
        checkpointed: whether activations are computed again.
        stated: the command's arguments.
        offloaded: whether what is saved for the backward pass is moved to the CPU.
    """

    def __init__(self, level, accumulate, checkpointed, stated, offloaded=False):
        self.name = " + ".join(
            word
            for word, there in (
                ("AMP " + level, level != "O0"),
                (f"accumulation x{accumulate}", accumulate > 1),
                ("checkpointing", checkpointed),
                ("offloading", offloaded),
            )
            if there
        )
        self.offloaded = offloaded
        self.level, self.accumulate, self.checkpointed, self.stated = level, accumulate, checkpointed, stated
        self.times = []

    @contextlib.contextmanager
    def opened(self):
        """Yield a function that does one iteration, in a session of its own."""
        stated = self.stated
        torch.manual_seed(0)
        model = Detector(stated.width, stated.blocks, self.checkpointed).to(stated.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        count = max(1, stated.batch // self.accumulate) if stated.same_batch else stated.batch
        images = torch.randn(count, 3, stated.size, stated.size, device=stated.device)
        try:
            amp.initialize(model, optimizer, opt_level=self.level, verbosity=0, loss_scale=128.0)
            accumulation = amp.accumulate(optimizer, self.accumulate)

            def iterate(watch=None):
                with contextlib.nullcontext() if watch is None else watch(model):
                    loss = self.loss(model, images)
                with accumulation.scale_loss(loss) as scaled_loss:
                    scaled_loss.backward()
                accumulation.step()

            yield iterate
        finally:
            ampcompat.reset()

    def loss(self, model, images):
        """Return the loss of a model."""
        if not self.offloaded:
            return loss_of(model, images)
        with torch.autograd.graph.save_on_cpu(pin_memory=self.stated.device != "cpu"):
            return loss_of(model, images)

    def on_gpu(self):
        """Return the ``Estimate`` of a step on a GPU."""
        stated = self.stated
        count = max(1, stated.batch // self.accumulate) if stated.same_batch else stated.batch
        return ampcompat.estimate(
            Detector(stated.width, stated.blocks, self.checkpointed),
            lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
            self.level,
            loss=lambda model: self.loss(model, torch.randn(count, 3, stated.size, stated.size)),
            accumulate=self.accumulate,
        )

    def time(self):
        """Add the seconds of an iteration, a mean over some."""
        with self.opened() as iterate:
            for _ in range(2 * self.accumulate):
                iterate()
            self.wait()
            started = time.perf_counter()
            count = max(self.accumulate, self.stated.iterations // self.accumulate * self.accumulate)
            for _ in range(count):
                iterate()
            self.wait()
            self.times.append((time.perf_counter() - started) / count)

    def wait(self):
        """Wait for the device."""
        if self.stated.device != "cpu":
            torch.cuda.synchronize()

    def peak(self):
        """Return (the most bytes held during iterations, the bytes a forward pass saves)."""
        gc.collect()
        with self.opened() as iterate:
            for _ in range(self.accumulate):
                iterate()
            kept = self.saved(iterate)
            for _ in range(self.accumulate - 1):
                iterate()
            return self.most(iterate), kept

    def saved(self, iterate):
        """Return the bytes, beside the weights, that the forward pass of an iteration saves."""
        found = {}

        def hooks(model):
            weights = {param.untyped_storage()._cdata for param in model.parameters()}

            def keep(tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in weights:
                    found[storage._cdata] = (storage.nbytes(), tensor)
                return tensor

            return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)

        iterate(hooks)
        return sum(size for size, _ in found.values())

    def most(self, iterate):
        """Return the most bytes that are held during one group of iterations."""
        if self.stated.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
            for _ in range(self.accumulate):
                iterate()
            return torch.cuda.max_memory_allocated()
        with HighWater() as water:
            for _ in range(self.accumulate):
                iterate()
        return water.most


def rows_of(stated):
    """Return the base, then every combination of what saves memory, offloading by itself at each level."""
    choices = itertools.product(["O0"] + stated.levels, (1, stated.accumulate), (False, True))
    rows = [Row(*choice, stated) for choice in choices]
    rows += [Row(level, 1, False, stated, offloaded=True) for level in ["O0"] + stated.levels]
    return sorted(rows, key=lambda row: row.name.count("+") + bool(row.name))


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--levels", nargs="+", default=["O1", "O2"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=4, help="timed in a row, in each round")
    parser.add_argument("--size", type=int, default=256, help="pixels of an image's side")
    parser.add_argument("--width", type=int, default=32, help="channels of the first stage")
    parser.add_argument("--blocks", type=int, default=2, help="in each of the four stages")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--same-batch", action="store_true", help="divide a batch instead of adding batches")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args(arguments)


def report(rows, peaks):
    """Return the table as lines."""
    lines = [
        "| training | memory MB | ratio | saved MB | ratio | time ms | ratio | on a GPU MB, predicted | offloaded MB |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    base_peak, base_kept = peaks[0]
    for row, (most, kept) in zip(rows, peaks):
        ratio = statistics.median(mine / base for mine, base in zip(row.times, rows[0].times))
        values = (most / 1e6, most / base_peak, kept / 1e6, kept / base_kept)
        figures = " | ".join("{:.1f} | {:.2f}".format(*pair) for pair in (values[:2], values[2:]))
        milliseconds = 1000 * statistics.median(row.times)
        on_gpu = row.on_gpu()
        predicted = f"{on_gpu.peak_total / 1e6:.1f} | {(on_gpu.offloaded or 0) / 1e6:.1f}"
        lines.append(
            "| {} | {} | {:.1f} | {:.2f} | {} |".format(row.name or "base", figures, milliseconds, ratio, predicted)
        )
    return lines


def main(arguments=None):
    stated = parse(arguments)
    rows = rows_of(stated)
    count = sum(param.numel() for param in Detector(stated.width, stated.blocks).parameters())
    place = torch.cuda.get_device_name(stated.device) if stated.device != "cpu" else "CPU"
    print(f"torch {torch.__version__}, {place}, {count:,} params, {stated.batch} images of {stated.size} pixels square")
    peaks = [row.peak() for row in rows]
    for _ in range(stated.rounds):
        for row in rows:
            row.time()
    print("\n".join(report(rows, peaks)))


if __name__ == "__main__":
    main()
