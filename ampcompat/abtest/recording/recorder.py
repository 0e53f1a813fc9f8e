"""Records the losses, loss scales, skipped steps, times and samples of a run, step by step.

With several optimizers, a step of the run ends when every optimizer known to amp has stepped in it, or before one of
them steps a second time. The generator and the discriminator of a GAN make one step together, and if there are five
critic updates for one of the generator, each of them makes one.
"""

import ctypes
import inspect
import sys
import time
import weakref
import zlib

import torch

from ...engine.casting.torch_compile import is_compiling
from ...engine.optimizers.optimizer_record import record_of
from ...observers.hooks import TrainingCalls
from ...support.containers import tensors_in
from ...support.observer_interface import Observer
from ...support.torch_compat import devices, thread_context
from ..report_data import Run
from .event_log import apply_event


class StepLimitReached(BaseException):
    """Raised to end a training loop. Not an ``Exception``, so that scripts that catch exceptions end too."""


class Recorder(Observer):
    """Records a run: the loss and the scale of every ``scale_loss``, skipped steps, seconds and samples per step.

    Reading the losses synchronizes with the device once, at the end of each step.

    Args:
        steps: raise ``StepLimitReached`` after this number of steps; None lets the run end by itself.
        on_event: called with every event (see ``event_log``), or None.
    """

    def __init__(self, steps=None, on_event=None):
        self.run = Run()
        self.limit = steps
        self.is_initialized = False
        self.has_plain_steps = False  # whether training without amp is recorded too
        self.is_full = False
        self.device = None  # of the losses
        self.loaded = []  # files that the script loaded before the first step
        self.sources = []  # ``EventSource`` objects
        self.number = None  # a function: the number of the loss of the running line; None: losses have amp's numbers
        self._metrics = []  # (name, value) of this step
        self._on_event = on_event
        self._optimizer_records = weakref.WeakSet()
        self._stepped = []  # the records that have stepped in this step of the run
        self._passes = []  # (loss_id, loss, scale) of this step
        self._skipped = False
        self._step_start = None  # seconds
        self.data = DataFingerprints()
        self._batches = BatchSizes(self.data.called)
        self._count = 0

    def record(self, event):
        """Apply an event to the run, and pass it to ``on_event``."""
        apply_event(self.run, event)
        if self._on_event is not None:
            self._on_event(event)

    def log(self, name, value):
        """Record a metric that the script logs, as of the current step."""
        self._metrics.append((name, value))

    def watch_models(self, models):
        """Count the batches that these models are called with; they may already be watched."""
        self._batches.models.watch(models)

    def forget_models(self):
        """Remove the hooks from the models."""
        self._batches.models.forget()

    # -- observer callbacks --------------------------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        """Record the backend, and register hooks on the models for their batch sizes."""
        self.is_initialized = True
        self._optimizer_records.update(map(record_of, optimizers))
        self.record({"backend": None if session.choice is None else session.choice.name})
        self.watch_models(models)
        if self._step_start is None:
            self._step_start = time.perf_counter()

    def before_backward(self, backward):
        """Keep the loss of this pass without reading it."""
        if any(record in self._stepped for record in backward.records):
            self._end_step()
        self._optimizer_records.update(backward.records)
        self._batches.end_pass()
        # A copy, since training loops may change a loss in place afterwards.
        loss_id = backward.loss_id if self.number is None else self.number()
        self._passes.append((loss_id, backward.loss.detach().clone(), backward.scale))

    def before_step(self, record):
        """End the step of the run if this optimizer has stepped in it already."""
        if record in self._stepped:
            self._end_step()

    def after_step(self, record):
        """End the step of the run if all optimizers have stepped in it."""
        self._optimizer_records.add(record)
        self._stepped.append(record)
        self._skipped = record.skips.was_last_skipped() or self._skipped
        if all(each in self._stepped for each in self._optimizer_records):
            self._end_step()

    def closed(self, session):
        """Record the last step, complete or not, and remove the hooks."""
        self.finish()
        self.forget_models()

    # -- a step --------------------------------------------------------------------------------------------------------

    def finish(self):
        """Record a step in which not all optimizers have stepped; the run has ended."""
        if self._stepped and not self.is_full:
            self._record_step()
        self._record_other_events(None)

    def _end_step(self):
        """Record the step that has just ended; stop the run if it was the last one requested."""
        if not self.is_full:
            self._record_step()
            self.is_full = self._count == self.limit
        if self.is_full:
            raise StepLimitReached(f"{self.limit} steps were requested")

    def _record_step(self):
        losses = [[loss_id, _mean(loss)] for loss_id, loss, _ in self._passes]
        if self._passes:
            self.device = self._passes[-1][1].device
        if self.device is not None:
            devices.synchronize(self.device)
        now = time.perf_counter()
        several = len(self._optimizer_records) > 1
        event = {
            "step": self._count,
            "loss": losses,
            "scale": [[loss_id, float(scale)] for loss_id, _, scale in self._passes],
            "skipped": self._skipped,
            "seconds": round(now - self._step_start, 6),  # as JSON has them
            "samples": self._batches.end_step(several),
            "watched": any(source.is_watching for source in self.sources),
            "metrics": [[name, float(value)] for name, value in self._metrics],
            "data": self.data.end_step(),
        }
        self._metrics = []
        self._stepped, self._passes, self._skipped = [], [], False
        self._count += 1
        self.record(event)
        self._record_other_events(None if self._count == self.limit else self._count)
        self._step_start = time.perf_counter()

    def _record_other_events(self, next_step):
        for source in self.sources:
            source.step_ended(next_step)
            for event in source.new_events():
                self.record(event)


def _mean(loss):
    """Return a loss as a float; if it has several elements, their mean."""
    return loss.item() if loss.numel() == 1 else loss.double().mean().item()


# -- samples -----------------------------------------------------------------------------------------------------------


class BatchSizes:
    """Counts the samples of a step: for each backward pass, the largest batch of the forward passes before it.

    The size of a batch is the first dimension of the first tensor that a model is called with.

    Args:
        on_call: called with the arguments of each of these calls.

    Attributes:
        models: the ``TrainingCalls`` with the models.
    """

    def __init__(self, on_call):
        self.models = TrainingCalls(self._called)
        self._on_call = on_call
        self._largest = 0
        self._samples = 0

    def _called(self, model, args, kwargs):
        self._largest = max(self._largest, _batch_size((args, kwargs)) or 0)
        if not is_compiling():
            self._on_call((args, kwargs))

    def end_pass(self):
        """Count the largest batch since the last pass."""
        self._samples, self._largest = self._samples + self._largest, 0

    def end_step(self, several_optimizers):
        """Return the samples of the step that ends, or None if they cannot be counted."""
        samples, self._samples = self._samples, 0
        return samples if samples and not several_optimizers else None


def _batch_size(value):
    """Return the first dimension of the first tensor in nested arguments, or None."""
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.dim() else None
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return int(value.batch_sizes[0])
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next((size for size in map(_batch_size, items) if size is not None), None)


#: The number of steps whose data are recorded, of tensors in each that count, and of elements of each tensor.
STEPS, TENSORS, ELEMENTS = 30, 64, 4096


class DataFingerprints:
    """Sums of checksums of what data loaders returned, and of what models were called with, for the first steps.

    With them ``judging.verdict`` detects whether runs had the same data. Losses alone do not show it: those of a half
    level may be several percent away from float32's on equal batches.

    Sums are used since the threads of DataParallel call models in any order. Inputs that require a gradient, such as
    what a generator passes to a discriminator, are left out because a level rounds them.
    """

    def __init__(self):
        self._loaded, self._inputs = [], []  # samples of this step: (shape, elements)
        self._steps = 0

    def watch(self, patches):
        """Record the batches of every ``DataLoader`` until ``patches`` is undone."""
        base = torch.utils.data.dataloader
        names = ("_BaseDataLoaderIter", "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")
        for owner in [getattr(base, name, None) for name in names]:
            if "__next__" in vars(owner or object):
                # The inner function: sessions replace the attribute, earlier or meanwhile.
                patches.redirect(inspect.unwrap(owner.__next__), self._watched)

    def _watched(self, following, iterator):
        batch = following(iterator)
        self._add(self._loaded, batch)
        return batch

    def called(self, arguments):
        """Take the arguments of a model, nested in containers, into account."""
        if _is_traced():
            return
        compiler = sys.modules.get("torch._dynamo")
        # Between two graphs, the compiler treats Python code that runs as part of the model, too.
        add = self._add if compiler is None else compiler.disable(self._add)
        add(self._inputs, arguments)

    def _add(self, samples, value):
        if self._steps < STEPS and len(samples) < TENSORS:
            samples += [_sample(each) for each in tensors_in(value) if _is_data(each)][: TENSORS - len(samples)]

    def end_step(self):
        """Return (checksum of loaded data, checksum of inputs) of the step that ends, 0 if there are none; or None."""
        if self._steps == STEPS:
            return None
        found = [sum(map(_checksum, samples)) % 2**31 for samples in (self._loaded, self._inputs)]
        self._loaded, self._inputs = [], []
        self._steps += 1
        return found


def _is_traced():
    """Return whether the running code is traced or transformed, so that tensors have no values of their own."""
    return (thread_context.functorch_level(), thread_context.jit_tracing_state()) != (None, None)


def _is_data(tensor):
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.requires_grad
    if tensor.is_cuda and thread_context.is_capturing_cuda_graph():
        return False
    return is_plain and tensor.device.type != "meta"


def _sample(tensor):
    """Return a tensor's shape, and up to about ``ELEMENTS`` of its elements as a new tensor on its device."""
    with thread_context.without_dispatch_modes(), thread_context.without_gradients():
        flat = tensor.detach().reshape(-1)
        return tuple(tensor.shape), flat[:: flat.numel() // ELEMENTS + 1].clone()


def _checksum(sample):
    shape, elements = sample
    with thread_context.without_dispatch_modes():
        elements = elements.cpu()
    content = ctypes.string_at(elements.data_ptr(), elements.numel() * elements.element_size())
    return zlib.crc32(content, zlib.crc32(repr(shape).encode()))
