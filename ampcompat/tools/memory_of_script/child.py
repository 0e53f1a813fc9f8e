"""Runs a script on fake tensors in a child process, until one step has been measured.

The task is that of ``SubprocessRun``, with the option ``counted_as``, "cuda" or "cpu". The event of the result has
``estimate``: ``level``, ``num_params``, ``at_peak`` and ``by_kind`` (bytes by kind; without activations where the step
cannot run), ``notes``.
"""

import contextlib
import io
import json
import traceback
from contextlib import ExitStack
from dataclasses import asdict

from ...abtest.recording.event_log import EventWriter
from ...abtest.running.subprocess_child import run_script
from ...engine.session import process_state
from ...support.patching import PatchStack
from ...support.torch_compat import fake_tensors
from ..forced_levels.forced_level import forced
from ..memory.formulas import during_training
from ..memory_on_fake_tensors import fake_step
from ..memory_on_fake_tensors.assumed_values import AssumedValues
from .loading import load_real_data
from .step_recorder import StepMeasured, StepRecorder

NO_STEP = "The script ended before a second optimizer.step() after amp.initialize, so no step was measured."
EMPTY = (
    "The step's batches, or other tensors, are empty: the script reads integers from tensors whose values are not "
    "known (`Tensor.item()`), and these are taken as 1. So there is no prediction."
)


def main(arguments):
    """Do the task in the first argument; return the exit code."""
    task = json.loads(arguments[0])
    process_state.set_command_line(opt_level=task["opt_level"])
    event = _outcome(task["command"], task["opt_level"], task["options"]["counted_as"])
    with contextlib.closing(EventWriter(task["event_log"])) as events:
        events.write(event)
        if "end" not in event:
            events.write({"end": "ok"})
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
        usage = recorder.usage
        if values.has_emptied:
            return _failed(EMPTY)
        return _found(recorder, usage.at_peak, usage.peak_by_kind, fake_step.assumptions(values))
    except SystemExit as error:
        return _failed(f"The script exited, with {error.code!r}, before a step was measured.")
    except Exception as error:  # the script's own, or because of fake tensors
        sentence = fake_step.why_unsupported(error, values)
        if sentence is None:
            traceback.print_exc()
            return _failed(f"The script failed: {type(error).__name__}: {error}")
        return _without_activations(recorder, sentence)
    return _failed(NO_STEP)


def _found(recorder, at_peak, by_kind, notes):
    found = {"level": recorder.level, "num_params": recorder.num_params(), "notes": notes}
    return {"estimate": dict(found, at_peak=asdict(at_peak), by_kind=asdict(by_kind))}


def _failed(sentence):
    return {"end": "failed", "error": sentence}


def _without_activations(recorder, sentence):
    """Return the result for models that were initialized but could not be trained."""
    models, optimizers = recorder.tracked()
    if not models:
        return _failed(sentence)
    with process_state.current().cast_backend.paused():
        kinds = during_training(models, optimizers, recorder.policy).by_kind
    return _found(recorder, kinds, kinds, [sentence])


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
