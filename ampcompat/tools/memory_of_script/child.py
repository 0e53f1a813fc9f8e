"""Runs a script on fake tensors in a child process, until one step has been measured.

The task is JSON: ``command`` ([script, arguments …] or ["-m", module, arguments …]), ``result`` (the file to write),
``counted_as`` ("cuda" or "cpu"). The result is JSON: ``level``, ``num_params``, ``at_peak`` and ``by_kind`` (bytes by
kind; without activations where the step cannot run), ``notes``; or ``error``, a sentence.
"""

import contextlib
import io
import json
import traceback
from contextlib import ExitStack
from dataclasses import asdict

from ...abtest.running.subprocess_child import run_script
from ...engine.session import process_state
from ...support.patching import PatchStack
from ...support.torch_compat import fake_tensors
from ..memory.formulas import during_training
from ..memory_on_fake_tensors import fake_step
from ..memory_on_fake_tensors.assumed_values import AssumedValues
from .loading import load_real_data
from .step_recorder import StepMeasured, StepRecorder

NO_STEP = "The script ended before a second optimizer.step() after amp.initialize, so no step was measured."


def main(arguments):
    """Do the task in the first argument; return the exit code."""
    task = json.loads(arguments[0])
    result, code = _outcome(task)
    with open(task["result"], "w", encoding="utf-8") as file:
        json.dump(result, file)
    return code


def _outcome(task):
    recorder = StepRecorder(task["counted_as"])
    try:
        fake_tensors.require()
        with ExitStack() as contexts:
            values = _enter(contexts, task, recorder)
            run_script(task["command"])
    except StepMeasured:
        usage = recorder.usage
        return _found(recorder, usage.at_peak, usage.peak_by_kind, fake_step.assumptions(values)), 0
    except SystemExit as error:
        return {"error": f"The script exited, with {error.code!r}, before a step was measured."}, 1
    except Exception as error:  # the script's own, or because of fake tensors
        sentence = fake_step.why_unsupported(error, values)
        if sentence is None:
            traceback.print_exc()
            return {"error": f"The script failed: {type(error).__name__}: {error}"}, 1
        return _without_activations(recorder, sentence), 1
    return {"error": NO_STEP}, 1


def _found(recorder, at_peak, by_kind, notes):
    found = {"level": recorder.level, "num_params": recorder.num_params(), "notes": notes}
    return dict(found, at_peak=asdict(at_peak), by_kind=asdict(by_kind))


def _without_activations(recorder, sentence):
    """Return the result for models that were initialized but could not be trained."""
    models, optimizers = recorder.tracked()
    if not models:
        return {"error": sentence}
    with process_state.current().cast_backend.paused():
        kinds = during_training(models, optimizers, recorder.policy).by_kind
    return _found(recorder, kinds, kinds, [sentence])


def _enter(contexts, task, recorder):
    """Enter the contexts that the script runs in; return the ``AssumedValues``."""
    values = AssumedValues()
    patches = contexts.enter_context(PatchStack())
    contexts.enter_context(fake_step.counted_as(task["counted_as"]))
    load_real_data(patches)
    patches.set(process_state, "observers", [recorder])
    contexts.enter_context(contextlib.redirect_stdout(io.StringIO()))  # its losses and metrics would be meaningless
    for mode in (fake_tensors.new_mode(), values):
        contexts.enter_context(mode)
    return values
