"""Records the losses, loss scales, skipped steps, times and samples of a run, step by step.

With several optimizers, a step of the run ends when every optimizer known to amp has stepped in it, or before one of
them steps a second time. The generator and the discriminator of a GAN make one step together, and if there are five
critic updates for one of the generator, each of them makes one.
"""

import time
import weakref

import torch

from ...engine.casting.torch_compile import is_compiling
from ...engine.optimizers.optimizer_record import record_of
from ...support.observer import Observer
from ...support.torch_compat import devices
from ...trace.hooks import TrainingCalls
from ..report_data import Run
from .data_fingerprints import DataFingerprints
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
        self._synchronize()
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

    def _synchronize(self):
        if self._passes:
            self.device = self._passes[-1][1].device
        if self.device is not None:
            devices.synchronize(self.device)


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
