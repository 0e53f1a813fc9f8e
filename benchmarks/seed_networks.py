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
        [--rounds 3] [--steps 8] [--device cpu] [--dtype float16] [--no-tf32]
"""

import argparse
import gc
import math
import statistics
import time

import torch
import torch.nn.functional as F

import ampcompat
from ampcompat import amp

LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
WAYS = ("float32", "autocast") + LEVELS
WARM_UP = 2

#: Low enough that no step is skipped while the scale is searched: the loss curves stay comparable step by step.
INIT_SCALE = 2.0**8


class DoubleConv(torch.nn.Sequential):
    """Two 3 x 3 convolutions, each with batch norm and ReLU."""

    def __init__(self, inputs, outputs):
        layers = []
        for channels in (inputs, outputs):
            convolution = torch.nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
            layers += [convolution, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU(inplace=True)]
        super().__init__(*layers)


class UNet(torch.nn.Module):
    """Four steps down and four up, with 32 channels at full resolution (Ronneberger et al. 2015)."""

    def __init__(self, inputs=1, outputs=1, width=32):
        super().__init__()
        widths = [width * 2**depth for depth in range(5)]
        self.down = torch.nn.ModuleList(DoubleConv(a, b) for a, b in zip([inputs] + widths, widths))
        self.grow = torch.nn.ModuleList(torch.nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in widths[-2::-1])
        self.up = torch.nn.ModuleList(DoubleConv(2 * a, a) for a in widths[-2::-1])
        self.head = torch.nn.Conv2d(width, outputs, 1)

    def forward(self, x):
        kept = []
        for block in self.down[:-1]:
            kept.append(block(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([kept.pop(), grow(x)], dim=1))
        return self.head(x)


class Encoder(torch.nn.Module):
    """BERT-base: 12 layers of width 768 with 12 heads, and a classifier for each token (Devlin et al. 2018)."""

    def __init__(self, layers=12, width=768, heads=12, words=30522, positions=512, labels=9):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.positions = torch.nn.Embedding(positions, width)
        self.norm = torch.nn.LayerNorm(width)
        layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classifier = torch.nn.Linear(width, labels)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.classifier(self.layers(self.norm(self.words(tokens) + self.positions(places))))


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
        layers = []
        for inputs, outputs in ((10, 200), (200, 100)):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU(), torch.nn.BatchNorm1d(outputs)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(100, 1))

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
        return Encoder()

    def batch(self, step):
        tokens = torch.randint(0, 1000, (self.count, self.length), generator=torch.Generator().manual_seed(step))
        return tokens, tokens % 9

    def criterion(self, outputs, targets):
        return F.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())


TASKS = {task.name: task for task in (Tabular, Segmentation, Tokens)}


class Plain:
    """A way to train: as the script is."""

    def __init__(self, task, way, dtype):
        self.task = task

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        return None

    def step(self, index):
        """Train one step and return its loss, unread."""
        self.task.optimizer.zero_grad()
        loss = self.task.loss(index)
        loss.backward()
        self.task.optimizer.step()
        return loss.detach()


class ByHand(Plain):
    """As torch's documentation has it."""

    def __init__(self, task, way, dtype):
        super().__init__(task, way, dtype)
        self.dtype = dtype
        self.scaler = torch.amp.GradScaler(task.device, init_scale=INIT_SCALE)

    def step(self, index):
        """Train one step and return its loss, unread."""
        self.task.optimizer.zero_grad()
        with torch.autocast(self.task.device, dtype=self.dtype):
            loss = self.task.loss(index)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.task.optimizer)
        self.scaler.update()
        return loss.detach()


class ByLevel(Plain):
    """At an opt level, as a script for Apex has it."""

    def __init__(self, task, way, dtype):
        super().__init__(task, way, dtype)
        self.session = ampcompat.session(way, verbosity=0)

    def __enter__(self):
        self.session.__enter__()
        amp.initialize(self.task.model, self.task.optimizer, init_scale=INIT_SCALE)
        return self

    def __exit__(self, *exc_info):
        self.session.__exit__(*exc_info)

    def step(self, index):
        """Train one step and return its loss, unread."""
        self.task.optimizer.zero_grad()
        loss = self.task.loss(index)
        with amp.scale_loss(loss, self.task.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.task.optimizer.step()
        return loss.detach()


def kind_of(way):
    return {"float32": Plain, "autocast": ByHand}.get(way, ByLevel)


def train(task_class, way, stated, measures_memory=True):
    """Train a fresh network one way; return (seconds per step, losses, memory)."""
    task = task_class(stated.device)
    on_cuda = stated.device.startswith("cuda")
    with kind_of(way)(task, way, getattr(torch, stated.dtype)) as trained:
        losses, seconds = [], []
        if on_cuda:
            torch.cuda.reset_peak_memory_stats()
        for index in range(WARM_UP + stated.steps):
            start = time.perf_counter()
            losses.append(trained.step(index))
            if on_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        if on_cuda:
            memory = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        elif not measures_memory:
            memory = (0, None)
        else:
            report = ampcompat.memory_report(task.model, task.optimizer, step=lambda: trained.step(0))
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
    print("way        ms/step  to float32  to autocast  peak MB allocated/reserved   last loss  farthest from float32")
    medians = {way: [statistics.median(seconds) * 1e3 for seconds in found[way][0]] for way in found}
    for way, (_, losses, memory) in found.items():
        ratios = [_ratio(medians[way], medians.get(rival)) for rival in ("float32", "autocast")]
        allocated, reserved = (max(column) if None not in column else None for column in zip(*memory))
        print(
            "{:9} {:8.2f} {:>11} {:>12} {:>17.1f} / {:9} {:11.4f} {:>22}".format(
                way,
                statistics.median(medians[way]),
                *ratios,
                allocated / 2**20,
                "not CUDA" if reserved is None else f"{reserved / 2**20:.1f}",
                losses[0][-1],
                _distance(losses[0], found["float32"][1][0]) if "float32" in found else "",
            )
        )


def _ratio(mine, theirs):
    if theirs is None:
        return ""
    return f"{statistics.median(one / other for one, other in zip(mine, theirs)):.2f}"


def _distance(losses, baseline):
    """Return the largest difference of two loss curves, relative to the baseline's mean."""
    largest = max(abs(one - other) for one, other in zip(losses, baseline))
    return "nan" if math.isnan(largest) else f"{largest / (sum(baseline) / len(baseline)):.2%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, help="images or texts per step, instead of 2")
    parser.add_argument("--length", type=int, help="tokens per text, instead of 64")
    parser.add_argument("--size", type=int, help="pixels of an image's side, instead of 96")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"), help="of autocast by hand")
    parser.add_argument("--no-tf32", action="store_true", help="float32 products in full precision on CUDA")
    stated = parser.parse_args()
    if stated.no_tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for task in (Segmentation, Tokens):
        task.count = stated.batch or task.count
    Segmentation.size = stated.size or Segmentation.size
    Tokens.length = stated.length or Tokens.length
    device = torch.cuda.get_device_name() if stated.device.startswith("cuda") else "cpu"
    sizes = (torch.__version__, device, torch.get_num_threads(), stated.rounds, stated.steps)
    print("torch {}, {}, {} threads, {} rounds of {} steps".format(*sizes))
    for name in stated.networks:
        print_table(TASKS[name], measure(TASKS[name], stated), stated)


if __name__ == "__main__":
    main()
