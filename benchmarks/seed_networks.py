"""Three networks at every level, beside torch's own mixed precision and beside no mixed precision at all.

    tabular   a small feed-forward network on scikit-learn's diabetes table (442 real rows)
    unet      a UNet with 7.8 million params, on generated images with discs to find
    bert      an encoder of BERT-base's shape with random weights, classifying tokens of generated text

and three ways to train each: `float32` (plain torch), `autocast` (torch.autocast and torch.amp.GradScaler by hand)
and O0 to O5 (ampcompat). Prints for each the median time of a step and its ratio to float32 and to autocast, the peak
of the memory, and the loss at the end beside float32's. Each round makes the network anew with the same weights and
batches and trains it in every way, so that changes of the machine's speed affect all of them.

Memory is counted on a CPU (live tensors at the peak of a step) and read from the allocator on CUDA, allocated and
reserved.

    python benchmarks/seed_networks.py [--networks tabular unet bert] [--ways float32 autocast O0 … O5]
        [--rounds 3] [--steps 8] [--batch 2] [--length 64] [--size 96] [--device cpu] [--dtype float16] [--no-tf32]
"""

import contextlib
import functools
import gc
import math
import statistics

import bench
import torch
import torch.nn.functional as F
from networks import Bert, UNet, perceptron

import ampcompat
from ampcompat import amp

WAYS = ("float32", "autocast") + bench.LEVELS
WARM_UP = 2

#: Low enough that no step is skipped while the scale is searched: the loss curves stay comparable step by step.
INIT_SCALE = 2.0**8


class Task:
    """A network, its optimizer, and a batch for each step; the same every time that it is made."""

    name = None

    def __init__(self, device):
        torch.manual_seed(0)
        self.device = device
        self.model = self.make_model().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.rate)

    def loss(self, step):
        inputs, targets = (each.to(self.device) for each in self.batch(step))
        return self.criterion(self.model(inputs), targets)


class Tabular(Task):
    """The diabetes table: ten columns in, the progression of the disease out, both standardised."""

    name, rate = "tabular", 1e-3

    def make_model(self):
        from sklearn.datasets import load_diabetes

        inputs, targets = (torch.tensor(each, dtype=torch.float32) for each in load_diabetes(return_X_y=True))
        self.rows = (inputs / inputs.std(0), ((targets - targets.mean()) / targets.std())[:, None])
        norms = [torch.nn.BatchNorm1d(200), torch.nn.BatchNorm1d(100)]
        layers = perceptron(10, 200, 100, last=1)
        return torch.nn.Sequential(*layers[:2], norms[0], *layers[2:4], norms[1], layers[4])

    def batch(self, step):
        chosen = torch.randint(0, 442, (64,), generator=torch.Generator().manual_seed(step))
        return tuple(each[chosen] for each in self.rows)

    def criterion(self, outputs, targets):
        return F.mse_loss(outputs, targets)


class Segmentation(Task):
    """Images of noise with a bright disc each: which pixels belong to the disc?"""

    name, rate = "unet", 1e-3
    count, size = 2, 96

    def make_model(self):
        return UNet()

    def batch(self, step):
        generator = torch.Generator().manual_seed(step)
        centre = torch.rand(self.count, 2, 1, 1, generator=generator)
        grid = torch.stack(torch.meshgrid(*[torch.linspace(0, 1, self.size)] * 2, indexing="ij"))
        disc = ((grid - centre) ** 2).sum(1, keepdim=True) < 0.04
        return disc + torch.randn(disc.shape, generator=generator), disc.float()

    def criterion(self, outputs, targets):
        return F.binary_cross_entropy_with_logits(outputs, targets)


class Tokens(Task):
    """Random tokens, each labelled by its index modulo nine."""

    name, rate = "bert", 1e-4
    count, length = 2, 64

    def make_model(self):
        return Bert()

    def batch(self, step):
        tokens = torch.randint(0, 1000, (self.count, self.length), generator=torch.Generator().manual_seed(step))
        return tokens, tokens % 9

    def criterion(self, outputs, targets):
        return F.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())


TASKS = {task.name: task for task in (Tabular, Segmentation, Tokens)}


@contextlib.contextmanager
def trained(task, way, dtype):
    """Yield a function that trains the step of an index one way, and returns its loss, unread."""
    optimizer, precision = task.optimizer, contextlib.nullcontext()

    def finish(loss):
        loss.backward()
        optimizer.step()

    def finish_scaled(loss):
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    with contextlib.ExitStack() as session:
        if way == "autocast":  # as torch's documentation has it
            scaler, finish = torch.amp.GradScaler(task.device, init_scale=INIT_SCALE), finish_scaled
            precision = torch.autocast(task.device, dtype=dtype)
        elif way != "float32":
            session.enter_context(ampcompat.session(way, verbosity=0))
            amp.initialize(task.model, optimizer, init_scale=INIT_SCALE)
            finish = functools.partial(bench.by_amp, optimizer)

        def step(index):
            optimizer.zero_grad()
            with precision:
                loss = task.loss(index)
            finish(loss)
            return loss.detach()

        yield step


def train(task_class, way, stated, measures_memory=True):
    """Train a fresh network one way; return (seconds per step, losses, memory)."""
    task = task_class(stated.device)
    on_cuda = stated.device.startswith("cuda")
    with trained(task, way, getattr(torch, stated.dtype)) as train_step:
        losses, seconds = [], []
        if on_cuda:
            torch.cuda.reset_peak_memory_stats()
        for index in range(WARM_UP + stated.steps):
            step = lambda index=index: losses.append(train_step(index))  # noqa: E731
            seconds.append(bench.seconds(step, stated.device))
        if on_cuda:
            memory = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        elif not measures_memory:
            memory = (0, None)
        else:
            report = ampcompat.memory_report(task.model, task.optimizer, step=lambda: train_step(0))
            memory = (report.peak_total, None)
    return seconds[WARM_UP:], [float(loss) for loss in losses], memory


def measure(task_class, stated):
    """Return {way: (milliseconds, ratios to float32, ratios to autocast, losses, memory)} over all rounds."""
    found = {way: ([], [], []) for way in stated.ways}
    for index in range(stated.rounds):
        for way in stated.ways:
            for collected, value in zip(found[way], train(task_class, way, stated, measures_memory=index == 0)):
                collected.append(value)
            gc.collect()
            if stated.device.startswith("cuda"):
                torch.cuda.empty_cache()
    return found


def print_table(task_class, found, stated):
    model = task_class("cpu").model
    print(f"\n{task_class.name}: {sum(param.numel() for param in model.parameters()):,} params")
    bench.heading(
        "way",
        "ms per step",
        "to float32",
        "to autocast",
        "peak MB",
        "reserved MB",
        "last loss",
        "farthest from float32",
    )
    medians = {way: [statistics.median(seconds) * 1e3 for seconds in found[way][0]] for way in found}
    for way, (_, losses, memory) in found.items():
        ratios = [
            f"{bench.ratio(medians[way], medians[rival]):.2f}" if rival in medians else ""
            for rival in ("float32", "autocast")
        ]
        peaks = ["" if None in column else f"{max(column) / 2**20:.1f}" for column in zip(*memory)]
        distance = _distance(losses[0], found["float32"][1][0]) if "float32" in found else ""
        bench.row(way, f"{statistics.median(medians[way]):.2f}", *ratios, *peaks, f"{losses[0][-1]:.4f}", distance)


def _distance(losses, baseline):
    """Return the largest difference of two loss curves, relative to the baseline's mean."""
    largest = max(abs(one - other) for one, other in zip(losses, baseline))
    return "nan" if math.isnan(largest) else f"{largest / (sum(baseline) / len(baseline)):.2%}"


def main():
    stated = bench.options(
        __doc__,
        networks=list(TASKS),
        ways=list(WAYS),
        rounds=3,
        steps=8,
        batch=Tokens.count,
        length=Tokens.length,
        size=Segmentation.size,
        device="cpu",
        dtype="float16",
        no_tf32=False,
    )
    if stated.no_tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    Segmentation.count = Tokens.count = stated.batch
    Segmentation.size, Tokens.length = stated.size, stated.length
    device = torch.cuda.get_device_name() if stated.device.startswith("cuda") else "cpu"
    sizes = (torch.__version__, device, torch.get_num_threads(), stated.rounds, stated.steps)
    print("torch {}, {}, {} threads, {} rounds of {} steps".format(*sizes))
    for name in stated.networks:
        print_table(TASKS[name], measure(TASKS[name], stated), stated)


if __name__ == "__main__":
    main()
