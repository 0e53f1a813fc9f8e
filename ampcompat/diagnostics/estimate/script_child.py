"""Runs a script on fake tensors in a child process, until one step has been measured.

The task is that of ``SubprocessRun``, with the option ``counted_as``, "cuda" or "cpu". The event of the result has
``estimate``: ``level``, ``num_params``, ``at_peak`` and ``peak_by_kind`` (bytes by kind), ``notes``.
"""

import contextlib
import io
import json
import traceback
from contextlib import ExitStack
from dataclasses import asdict

import torch
import torch.utils.data
from torch.utils.data import dataloader

from ...abtest.recording.event_log import write_event
from ...abtest.running.subprocess_child import run_script
from ...engine.session import process_state
from ...launch.forced_levels.forced_level import forced
from ...observers.memory.memory_observer import SamplingObserver
from ...support.patching import PatchStack
from ...support.torch_compat import fake_tensors, thread_context
from . import fake_step
from .assumed_values import AssumedValues

NO_STEP = "The script ended before a second optimizer.step() after amp.initialize, so no step was measured."
EMPTY = (
    "The step's batches, or other tensors, are empty: the script reads integers from tensors whose values are not "
    "known (`Tensor.item()`), and these are taken as 1. So there is no prediction."
)

#: A step ends with the optimizer whose first step comes last; optimizers that have not stepped are left out.
_MOST_STEPS = 50


def main(arguments):
    """Do the task in the first argument; return the exit code."""
    task = json.loads(arguments[0])
    process_state.set_command_line(opt_level=task["opt_level"])
    event = _outcome(task["command"], task["opt_level"], task["options"]["counted_as"])
    with open(task["event_log"], "w", encoding="utf-8") as log:
        write_event(log, event)
        if "end" not in event:
            write_event(log, {"end": "ok"})
    return 1 if "end" in event else 0


def _outcome(command, level, counted_as):
    """Return the event of the result, or of a run that failed."""
    recorder = StepRecorder(counted_as)
    try:
        fake_tensors.require()
        with ExitStack() as contexts:
            values = _enter(contexts, counted_as, recorder)
            contexts.enter_context(forced(level))
            run_script(command)
    except StepMeasured:
        return _failed(EMPTY) if values.has_emptied else _found(recorder, fake_step.assumptions(values))
    except SystemExit as error:
        return _failed(f"The script exited, with {error.code!r}, before a step was measured.")
    except Exception as error:  # the script's own, or because of fake tensors
        sentence = fake_step.why_unsupported(error, values)
        if sentence is None:
            traceback.print_exc()
            return _failed(f"The script failed: {type(error).__name__}: {error}")
        return _failed(sentence)
    return _failed(NO_STEP)


def _found(recorder, notes):
    usage = recorder.usage
    found = {"level": recorder.level, "num_params": recorder.num_params(), "notes": notes}
    return {"estimate": dict(found, at_peak=asdict(usage.at_peak), peak_by_kind=asdict(usage.peak_by_kind))}


def _failed(sentence):
    return {"end": "failed", "error": sentence}


def _enter(contexts, counted_as, recorder):
    """Enter the contexts that the script runs in; return the ``AssumedValues``."""
    values = AssumedValues()
    patches = contexts.enter_context(PatchStack())
    contexts.enter_context(fake_step.counted_as(counted_as))
    load_real_data(patches)
    patches.set(process_state, "observers", [recorder])
    contexts.enter_context(contextlib.redirect_stdout(io.StringIO()))  # its losses and metrics would be meaningless
    for mode in (fake_tensors.new_mode(), values):
        contexts.enter_context(mode)
    return values


class StepMeasured(BaseException):
    """Raised to end a script. Not an ``Exception``, so that scripts that catch exceptions end too."""


class StepRecorder(SamplingObserver):
    """Measures from the end of the first step, in which every optimizer has stepped, to the end of the second.

    Args:
        counted_as: "cuda" or "cpu".

    Attributes:
        usage: the ``MemoryUsage``, or None until it is measured.
        level: the opt level; None before ``amp.initialize``.
    """

    def __init__(self, counted_as):
        super().__init__()
        self.usage = None
        self.level = None
        self._counted_as = counted_as
        self._optimizers = []
        self._stepped = set()  # ids of optimizers
        self._steps = 0
        self._last = None  # the optimizer with which a step ends

    def initialized(self, session, models, optimizers):
        self.level = session.policy.opt_level
        super().initialized(session, models, optimizers)
        self._optimizers += list(optimizers)
        if self._counted_as == "cuda":
            for optimizer in optimizers:
                fake_step.choose_foreach(optimizer)

    def after_step(self, record):
        """Sample: optimizer state exists. Start measuring, or end the script, if this was the end of a step."""
        super().after_step(record)
        self._steps += 1
        self._stepped.add(id(record.optimizer))
        if self._meter.is_measuring:
            if record.optimizer is self._last:
                self.usage = self._meter.stop()
                raise StepMeasured
        elif self._steps >= _MOST_STEPS or all(id(each) in self._stepped for each in self._optimizers):
            self._last = record.optimizer
            self._meter.start()

    def num_params(self):
        """Return the number of elements of their params."""
        models, _ = self._meter.tracked()
        return sum({id(param): param.numel() for each in models for param in each.parameters()}.values())


# -- data --------------------------------------------------------------------------------------------------------------


def load_real_data(patches):
    """Disable fake tensors in datasets, samplers and ``DataLoader``, which read values: only the computation is fake.

    Dataset classes that are defined from now on are changed permanently, so use this only in a separate process.

    Args:
        patches: the ``PatchStack`` that undoes the rest.
    """
    loader, iterator = torch.utils.data.DataLoader, dataloader._BaseDataLoaderIter
    patches.wrap(loader, "__iter__", _without_workers)
    patches.wrap(iterator, "__next__", _outside)
    patches.set(torch.utils.data.Dataset, "__init_subclass__", classmethod(_made_outside))


def _outside(function, *args, **kwargs):
    """Call ``function`` with real tensors."""
    with thread_context.without_dispatch_modes():
        return function(*args, **kwargs)


def _without_workers(iterate, loader):
    """Call ``DataLoader.__iter__`` so that it starts no processes, since fake tensors cannot be sent to them."""
    with PatchStack() as patches:
        patches.set(loader, "num_workers", 0)
        return _outside(iterate, loader)


def _made_outside(kind, **options):
    super(torch.utils.data.Dataset, kind).__init_subclass__(**options)
    if "__init__" in vars(kind):
        PatchStack().wrap(kind, "__init__", _outside)
