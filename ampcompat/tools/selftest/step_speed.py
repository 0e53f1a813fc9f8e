"""Time and memory of a training step, compared with a hand-written loop with torch.autocast and GradScaler."""

import gc
import statistics
import time
from typing import Any, Callable, NamedTuple

import torch
import torch.nn.functional as F

from ... import amp
from ...support.torch_compat import features
from ..memory_report_and_estimate import memory_report
from .networks import Classifier, Encoder, images, tokens
from .results import MEASURED, NOT_RUN, CheckResult
from .training import INIT_SCALE, Setting

SETTINGS = (Setting("O1", "native"), Setting("O1", "patched"), Setting("O2"))
#: The largest allowed ratios of time and peak memory to those of the hand-written loop on a GPU.
TARGETS = {"O1": [("time_ratio", 1.01)], "O2": [("time_ratio", 0.91), ("memory_ratio", 0.85)]}


class Workload(NamedTuple):
    """A network with its batch: functions that create them on a device."""

    name: str
    model: Callable[[], Any]
    batch: Callable[[str], Any]


def workloads(device, quick):
    """Return the ``Workload`` objects for a device: of BERT-base's size on a GPU, smaller on a CPU."""
    layers, width, count, length, wide = 12, 768, 32, 128, 64
    if device == "cpu":
        layers, width, count, length, wide = (1, 128, 2, 16, 8) if quick else (2, 768, 2, 16, 16)
    side, images_per_step = (16, 8) if device == "cpu" else (64, 128)
    return (
        Workload("CNN", lambda: Classifier(wide), lambda device: images(device, 0, images_per_step, side)),
        Workload(
            f"encoder {layers}x{width}",
            lambda: Encoder(layers, width),
            lambda device: tokens(device, count, length),
        ),
    )


class ByHand:
    """The loop of torch's documentation, in float16."""

    def __init__(self, workload, device):
        self.device = device
        torch.manual_seed(0)
        self.model = workload.model().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.batch = workload.batch(device)

    def __enter__(self):
        self.scaler = torch.amp.GradScaler(self.device.partition(":")[0], init_scale=INIT_SCALE)

    def __exit__(self, *exc_info):
        self.scaler = None

    def loss(self):
        """Return the loss of the batch."""
        inputs, classes = self.batch
        return F.cross_entropy(self.model(inputs).flatten(0, -2).float(), classes.flatten())

    def step(self):
        """Do one training iteration."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device.partition(":")[0], dtype=torch.float16):
            loss = self.loss()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Float32(ByHand):
    """A loop without mixed precision."""

    def __enter__(self):
        """Nothing is active between the steps."""

    def __exit__(self, *exc_info):
        """Nothing is active between the steps."""

    def step(self):
        """Do one training iteration."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


class ByAmp(ByHand):
    """The same loop through ``amp``; the session is open while a round of it runs."""

    def __init__(self, workload, device, setting):
        super().__init__(workload, device)
        self.setting = setting

    def __enter__(self):
        self._session = self.setting.opened()
        self._session.__enter__()
        amp.initialize(self.model, self.optimizer, init_scale=INIT_SCALE)

    def __exit__(self, *exc_info):
        self._session.__exit__(*exc_info)

    def step(self):
        """Do one training iteration."""
        self.optimizer.zero_grad()
        with amp.scale_loss(self.loss(), self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()


def _synchronize(device):
    kind = device.partition(":")[0]
    module = getattr(torch, kind, None)
    if kind != "cpu" and hasattr(module, "synchronize"):
        module.synchronize(*[device] if kind != "mps" else [])


def _seconds_per_step(subject, device, steps):
    with subject:
        for _ in range(1 if device == "cpu" else 3):  # create the optimizer's state, load kernels
            subject.step()
        _synchronize(device)
        start = time.perf_counter()
        for _ in range(steps):
            subject.step()
        _synchronize(device)
        return (time.perf_counter() - start) / steps


def _peak_bytes(make, device):
    """Return the peak of memory in a step: the allocator's on CUDA, counted tensors elsewhere."""
    gc.collect()
    before = torch.cuda.memory_allocated(device) if device.startswith("cuda") else 0
    subject = make()
    with subject:
        if not device.startswith("cuda"):
            return memory_report(subject.model, subject.optimizer, subject.step).peak_total
        subject.step()
        torch.cuda.reset_peak_memory_stats(device)
        subject.step()
        return torch.cuda.max_memory_allocated(device) - before


def check_speed(device, quick=False):
    """Yield rows with the time and peak memory of a step at O1 and O2, relative to the hand-written loop.

    Args:
        device: "cpu", "cuda", …
        quick: fewer rounds, smaller networks on a CPU.
    """
    kind = device.partition(":")[0]
    if torch.float16 not in features.autocast_dtypes(kind) or not hasattr(getattr(torch, "amp", None), "GradScaler"):
        reason = "this torch has no torch.autocast in float16 on {} with torch.amp.GradScaler to compare with"
        yield CheckResult("speed", "all", NOT_RUN, reason.format(kind))
        return
    rounds, steps = (2, 2) if quick or device == "cpu" else (5, 10)
    for workload in workloads(device, quick):
        makes = {"by hand": lambda workload=workload: ByHand(workload, device)}
        makes["float32"] = lambda workload=workload: Float32(workload, device)
        for setting in SETTINGS:
            makes[str(setting)] = lambda workload=workload, setting=setting: ByAmp(workload, device, setting)
        seconds = {name: [] for name in makes}
        for _ in range(rounds):
            for name, make in makes.items():
                seconds[name].append(_seconds_per_step(make(), device, steps))
        peaks = {name: _peak_bytes(make, device) for name, make in makes.items()}
        for name in makes:
            yield _row(workload, name, seconds, peaks, device)


def _row(workload, name, seconds, peaks, device):
    milliseconds = statistics.median(seconds[name]) * 1e3
    case = f"{workload.name}, {name}"
    found = f"{milliseconds:.2f} ms, {peaks[name] / 1e6:.1f} MB"
    figures = {"milliseconds": milliseconds, "peak_bytes": peaks[name]}
    if name == "by hand":
        found += " (torch.autocast and GradScaler)"
    else:
        figures["time_ratio"] = statistics.median(a / b for a, b in zip(seconds[name], seconds["by hand"]))
        figures["memory_ratio"] = peaks[name] / peaks["by hand"]
        found += "; {time_ratio:.2f} of the time by hand, {memory_ratio:.2f} of the memory".format(**figures)
    if device != "cpu" and name[:2] in TARGETS:
        found += "; " + ", ".join(_against(figures, *target) for target in TARGETS[name[:2]])
    return CheckResult("speed", case, MEASURED, found, figures=figures)


def _against(figures, name, target):
    return "target {}: {}".format(target, "met" if figures[name] <= target else "MISSED")
