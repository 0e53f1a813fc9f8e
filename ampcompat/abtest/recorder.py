"""Listens to a session and writes down what each step did.

Owns: ``Recorder``: what a step is, when it ends, what is kept of it; stopping after so many.
Must not touch: what trains. It adds a hook to models, to see how large a batch is, and takes it away.
The surprise: with several optimizers a step is a round. It ends when every optimizer that amp knows has stepped in
it, or when one that has comes again: the generator and the discriminator of a GAN make one step, and each of five
critic updates before one of the generator makes one.
"""

import time
import weakref

import torch

from ..parts.optimizers import SLOT
from ..runtime.observers import Observer
from ..tables import torch_facts
from .journal import take_in
from .records import Run


class EnoughSteps(BaseException):
    """Ends a training loop from within. No ``Exception``, so that scripts that catch those do not go on."""


class Recorder(Observer):
    """Records a run: the loss and the scale of every ``scale_loss``, skipped steps, seconds and samples per step.

    Reading a loss waits for the device, once at the end of each step.

    Args:
        steps: raise ``EnoughSteps`` after so many; None lets the run end by itself.
        tell: called with every event (see ``journal``), or None.
    """

    def __init__(self, steps=None, tell=None):
        self.run = Run()
        self.is_initialized = False
        self.is_full = False
        self.device = None  # of the losses
        self.sources = []  # have ``step_ended(following)`` and ``new_events()``, called after every step
        self._limit = steps
        self._listener = tell
        self._adapters = weakref.WeakSet()
        self._stepped = []  # the adapters that have stepped in this round
        self._passes = []  # (loss_id, loss, scale) of this step
        self._skipped = False
        self._since = None
        self._batches = BatchSizes()
        self._count = 0

    def tell(self, event):
        """Take an event into the run, and pass it on."""
        take_in(self.run, event)
        if self._listener is not None:
            self._listener(event)

    # -- what a session says -------------------------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        """Note who casts, and listen to the models for the size of their batches."""
        self.is_initialized = True
        self._adapters.update(getattr(optimizer, SLOT) for optimizer in optimizers)
        self.tell({"backend": None if session.choice is None else session.choice.name})
        self._batches.listen(models)
        if self._since is None:
            self._since = time.perf_counter()

    def before_backward(self, backward):
        """Keep the loss of this pass, unread."""
        if any(adapter in self._stepped for adapter in backward.adapters):
            self._end_step()
        self._adapters.update(backward.adapters)
        self._batches.end_pass()
        # A copy, since training loops are free to change a loss in place afterwards.
        self._passes.append((backward.loss_id, backward.loss.detach().clone(), backward.scale))

    def before_step(self, adapter):
        """See whether a new round begins."""
        if adapter in self._stepped:
            self._end_step()

    def after_step(self, adapter):
        """See whether the round is complete."""
        self._adapters.add(adapter)
        self._stepped.append(adapter)
        self._skipped = adapter.skips.was_last() or self._skipped
        if all(each in self._stepped for each in self._adapters):
            self._end_step()

    def closed(self, session):
        """Keep the last round, complete or not, and leave the models alone."""
        self.finish()
        self._batches.close()

    # -- a step --------------------------------------------------------------------------------------------------------

    def finish(self):
        """Keep a round that has begun: nothing more is going to come."""
        if self._stepped and not self.is_full:
            self._keep_step()
        self._tell_news(None)

    def _end_step(self):
        """Keep the step that has just ended; stop the run if that was the last one wanted."""
        if not self.is_full:
            self._keep_step()
            self.is_full = self._count == self._limit
        if self.is_full:
            raise EnoughSteps("{} steps were asked for".format(self._limit))

    def _keep_step(self):
        losses = [[loss_id, _mean(loss)] for loss_id, loss, _ in self._passes]
        self._synchronize()
        now = time.perf_counter()
        several = len(self._adapters) > 1
        event = {
            "step": self._count,
            "loss": losses,
            "scale": [[loss_id, float(scale)] for loss_id, _, scale in self._passes],
            "skipped": self._skipped,
            "seconds": now - self._since,
            "samples": self._batches.take(several),
        }
        self._stepped, self._passes, self._skipped = [], [], False
        self._count += 1
        self.tell(event)
        self._tell_news(None if self._count == self._limit else self._count)
        self._since = time.perf_counter()

    def _tell_news(self, following):
        for source in self.sources:
            source.step_ended(following)
            for event in source.new_events():
                self.tell(event)

    def _synchronize(self):
        if self._passes:
            self.device = self._passes[-1][1].device
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _mean(loss):
    """Return a loss as a float; of a loss per sample the mean."""
    return loss.item() if loss.numel() == 1 else loss.double().mean().item()


# -- samples -----------------------------------------------------------------------------------------------------------


class BatchSizes:
    """Counts the samples of a step: per backward pass, the largest batch that a model trained on since the pass before.

    A batch is as large as the first dimension of the first tensor that the model is called with.
    """

    def __init__(self):
        self._largest = 0
        self._samples = 0
        self._hooks = []

    def listen(self, models):
        """Hear of every call of these models."""
        for model in models:
            options = {"with_kwargs": True} if torch_facts.has_hooks_with_kwargs() else {}
            self._hooks.append(model.register_forward_pre_hook(InputHook(self), **options))

    def saw(self, size):
        """Hear of one batch."""
        self._largest = max(self._largest, size)

    def end_pass(self):
        """Count what the models were called with since the last pass."""
        self._samples, self._largest = self._samples + self._largest, 0

    def take(self, several_optimizers):
        """Return the samples of the step that ends, or None where that would be a guess."""
        samples, self._samples = self._samples, 0
        return samples if samples and not several_optimizers else None

    def close(self):
        """Leave the models alone."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class InputHook:
    """A forward pre-hook that reports batch sizes; copies and pickles of its model get one that is deaf."""

    def __init__(self, sizes=None):
        self._sizes = sizes

    def __call__(self, module, args, kwargs=None):
        if self._sizes is not None and module.training and torch.is_grad_enabled():
            self._sizes.saw(_batch_size((args, kwargs or {})) or 0)

    def __reduce__(self):
        return InputHook, ()


def _batch_size(value):
    """Return the first dimension of the first tensor in nested arguments, or None."""
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.dim() else None
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return int(value.batch_sizes[0])
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next((size for size in map(_batch_size, inner) if size is not None), None)
