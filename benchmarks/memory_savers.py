"""Memory and time of training a small detector: base, mixed precision, accumulation, checkpointing, all together; and
what is saved for the backward pass moved to the CPU (offloading, ``torch.autograd.graph.save_on_cpu``).

The network is ``networks.Detector``; its targets are made up, since what is measured does not depend on them.

Each row trains by itself. In a step of the base the optimizer gets ``--batch`` images; with accumulation it steps
after ``--accumulate`` such batches, as in MMCV's table: what an iteration costs stays.

    memory      the most bytes that tensors hold at any operation of an iteration (on a GPU: from the allocator)
    saved       the bytes that a forward pass keeps on the device for the backward pass: activations, half copies
    on a GPU    the peak of a step on a GPU as `ampcompat.estimate` predicts it, and what is offloaded
    time        of an iteration (one forward and backward pass, and a step if it is due)

Where the device is the CPU itself, offloading copies within one memory, and saves nothing but on the predicted GPU.

The rows are interleaved, so that changes of the machine's speed affect all of them. Ratios are to the base, medians
over the rounds.

    python benchmarks/memory_savers.py [--levels O1 O2] [--rounds 3] [--iterations 4] [--size 256] [--width 32]
        [--blocks 2] [--batch 4] [--accumulate 2] [--device cuda]
"""

import contextlib
import gc
import itertools
import statistics

import bench
import torch
from memory import HighWater
from networks import Detector, detector_loss

import ampcompat
from ampcompat import amp


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

    @contextlib.contextmanager
    def opened(self):
        """Yield a function that does one iteration, in a session of its own."""
        stated = self.stated
        torch.manual_seed(0)
        model = Detector(stated.width, stated.blocks, self.checkpointed).to(stated.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        images = torch.randn(stated.batch, 3, stated.size, stated.size, device=stated.device)
        try:
            amp.initialize(model, optimizer, opt_level=self.level, verbosity=0, loss_scale=128.0)
            passes = 0

            def iterate(watch=None):
                nonlocal passes
                with contextlib.nullcontext() if watch is None else watch(model):
                    loss = self.loss(model, images)
                with amp.scale_loss(loss / self.accumulate, optimizer) as scaled_loss:
                    scaled_loss.backward()
                passes += 1
                if passes % self.accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()

            yield iterate
        finally:
            ampcompat.reset()

    def loss(self, model, images):
        """Return the loss of a model."""
        if not self.offloaded:
            return detector_loss(model, images)
        with torch.autograd.graph.save_on_cpu(pin_memory=self.stated.device != "cpu"):
            return detector_loss(model, images)

    def on_gpu(self):
        """Return the predicted ``MemoryReport`` of a step on a GPU."""
        stated = self.stated
        return ampcompat.estimate(
            Detector(stated.width, stated.blocks, self.checkpointed),
            lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
            self.level,
            loss=lambda model: self.loss(model, torch.randn(stated.batch, 3, stated.size, stated.size)),
            accumulate=self.accumulate,
        )

    def time(self):
        """Return the seconds of an iteration, a mean over some."""
        with self.opened() as iterate:
            for _ in range(2 * self.accumulate):
                iterate()
            count = max(self.accumulate, self.stated.iterations // self.accumulate * self.accumulate)
            return bench.seconds(lambda: [iterate() for _ in range(count)], self.stated.device) / count

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
    return bench.options(
        __doc__, arguments, levels=["O1", "O2"], rounds=3, iterations=4, size=256, width=32, blocks=2, batch=4,
        accumulate=2, device="cpu",
    )  # fmt: skip


def cells_of(row, base, peaks, times):
    """Return the cells of a row; ``peaks`` and ``times`` are by name."""
    (most, kept), (base_most, base_kept) = peaks[row.name], peaks[base.name]
    predicted = row.on_gpu()
    figures = [most / 1e6, most / base_most, kept / 1e6, kept / base_kept]
    figures += [1000 * statistics.median(times[row.name]), bench.ratio(times[row.name], times[base.name])]
    figures += [predicted.peak_total / 1e6, (predicted.peak_by_kind.offloaded or 0) / 1e6]
    formats = ["{:.1f}", "{:.2f}"] * 3 + ["{:.1f}"] * 2
    return [row.name or "base"] + [form.format(figure) for form, figure in zip(formats, figures)]


def main(arguments=None):
    stated = parse(arguments)
    rows = rows_of(stated)
    count = sum(param.numel() for param in Detector(stated.width, stated.blocks).parameters())
    place = torch.cuda.get_device_name(stated.device) if stated.device != "cpu" else "CPU"
    print(f"torch {torch.__version__}, {place}, {count:,} params, {stated.batch} images of {stated.size} pixels square")
    peaks = {row.name: row.peak() for row in rows}
    times = bench.interleaved({row.name: row.time for row in rows}, stated.rounds)
    bench.heading(
        "training", "memory MB", "ratio", "saved MB", "ratio", "time ms", "ratio", "on a GPU MB, predicted",
        "offloaded MB",
    )  # fmt: skip
    for row in rows:
        bench.row(*cells_of(row, rows[0], peaks, times))


if __name__ == "__main__":
    main()
