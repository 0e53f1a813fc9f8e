"""Observes a run up to one optimizer step, and records that step; an event source of ``RunOptions(watch=…)``.

The reference process writes the weights, random states and loss scale before the step, and its record after it. The
other process reads them, so that its step begins with the same weights; then it compares.
"""

import json
import os
import pickle

import torch

from ... import opt_levels
from ...errors import AmpError
from ...support import random_state
from ...support.child_environment import ChildEnvironment
from ...support.observer import Observer
from ...support.patching import PatchStack
from ...support.torch_compat import features
from ...support.torch_compat.thread_context import HAS_AUTOGRAD_NODES, autograd_node
from ...trace.calls import OperationCalls
from ...trace.places import ModuleStack
from ...trace.values import Transfer
from ..stated_options import StatedOptions
from . import compare_steps
from .op_recorder import FunctionNames, OpRecorder
from .step_record import StepRecord
from .tensor_store import TensorStore, load, save

#: The files in the folder of the task.
START, RECORD = "start.pt", "record.pickle"

#: The loss scale if no gradients are known, and its bounds: gradients of up to 2**-2 of float16's range.
FIRST_SCALE, LARGEST_SCALE, SCALED_LIMIT = 2.0**10, 2.0**16, 2.0**14

#: The oldest torch with which first differences were found.
OLDEST = "2.1"


def is_supported():
    """Return whether first differences can be found with the installed torch."""
    has_modes = features.has_function_modes() and features.has_dispatch_modes()
    return HAS_AUTOGRAD_NODES and has_modes and features.is_version_within(oldest=OLDEST)


class ObservedStep(Observer):
    """Records one optimizer step, counted from 0.

    Args:
        task: a dict: ``role``, "reference" or "compared"; ``folder``; ``step``; ``level``, the opt level of the
            compared run or None; ``initialize``, its options of ``amp.initialize``; ``limit``, the bytes of tensors
            that are kept.
    """

    is_watching = False

    def __init__(self, task):
        if not is_supported():
            raise AmpError(f"The first difference needs torch {OLDEST} or newer; this is {features.version()}.")
        self._task = task
        self._is_reference = task["role"] == "reference"
        self._modules, self._names = ModuleStack(), FunctionNames()
        self._patches = PatchStack()
        self._recorder = self._store = self._maxima = None
        self._session, self._stated = None, StatedOptions()
        self._events, self._kept = [], []
        self.is_done = False

    def __enter__(self):
        self._names.start()
        self._modules.start()
        self._patches.defer(self._modules.stop)
        self._stated.record(self._patches)
        return self

    def __exit__(self, *error):
        self._stop()
        self._patches.undo()
        self._names.stop()

    # -- what the session and the recorder tell ------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        """Name the modules of the models; begin recording if the first step is recorded."""
        self._session = session
        self._modules.add_models(models)
        if self._task["step"] == 0 and self._recorder is None and not self.is_done:
            self._begin()

    def before_backward(self, backward):
        """Note the start of a backward pass."""
        if self._recorder is not None:
            self._recorder.add_loss(backward.loss)

    def after_backward(self, backward):
        """Note the gradients, if they did not have to be unscaled."""
        if self._recorder is not None:
            self._recorder.end_pass()

    def before_step(self, record):
        """Leave out the optimizer."""
        if self._recorder is not None:
            self._recorder.end_pass()
            self._recorder.is_paused = True
            self._keep_gradients()

    def after_step(self, record):
        """Continue after an optimizer."""
        if self._recorder is not None:
            self._recorder.is_paused = False

    def step_ended(self, next_step):
        """Begin or end the recording; None: the run has ended."""
        if self._recorder is not None:
            self._finish()
        if self._maxima is not None and self._maxima.is_entered:
            self._maxima.__exit__(None, None, None)
        if next_step is not None and next_step == self._task["step"]:
            self._begin()
        elif next_step is not None and next_step == self._task["step"] - 1 and self._is_reference:
            self._maxima = GradientMaximum()
            self._maxima.__enter__()

    def new_events(self):
        """Return the event of the comparison, once."""
        events, self._events = self._events, []
        return events

    # -- the step ------------------------------------------------------------------------------------------------------

    def _path(self, name):
        return os.path.join(self._task["folder"], name)

    def _begin(self):
        folder = self._path(self._task["role"])
        os.makedirs(folder, exist_ok=True)
        self._store = TensorStore(folder, self._task["limit"])
        tensors = self._modules.tensors()
        if self._is_reference:
            self._check_reference()
            start = {"random": random_state.capture(), "scale": self._loss_scale()}
            start["tensors"] = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            save(start, self._path(START))
        else:
            start = load(self._path(START), map_location="cpu", weights_only=False)
            _write(tensors, start["tensors"])
        self._set_scale(start)
        random_state.restore(start["random"])
        self._modules.begin_step()
        self._recorder = OpRecorder(self._store, self._names, self._modules, tensors, self._is_reference)
        self._recorder.__enter__()

    def _check_reference(self):
        level = None if self._session is None else self._session.policy.opt_level
        if level not in (None, "O0"):
            told = "The first difference is relative to float32, and the baseline computes at {}: pass --baseline O0."
            raise AmpError(told.format(level))

    def _level_scale(self):
        """Return the loss scale that the compared run requests: a float or ``DYNAMIC``."""
        level = self._task["level"]
        if level is None or self._session is None:  # without amp the loss is not scaled
            return 1.0
        options = self._stated.options
        stated = {name: options.get(name) for name in opt_levels.LEVEL_OPTIONS}
        stated.update({name: value for name, value in self._task["initialize"].items() if name in stated})
        return opt_levels.resolve(options.get("opt_level") or "O1", stated, {"opt_level": level})[1].loss_scale

    def _loss_scale(self):
        """Return the loss scale of both runs; a dynamic one keeps gradients far from the limit of float16."""
        wanted = self._level_scale()
        if wanted != opt_levels.DYNAMIC:
            return float(wanted or 1.0)
        largest = self._maxima.value() if self._maxima is not None else 0.0
        if not largest:
            return FIRST_SCALE
        scale = 1.0
        while scale < LARGEST_SCALE and scale * 2 * largest <= SCALED_LIMIT:
            scale *= 2
        while scale * largest > SCALED_LIMIT and scale > 2.0**-20:
            scale /= 2
        return scale

    def _set_scale(self, start):
        if self._session is None or self._task["level"] is None:
            return
        for each in self._session.configurations:
            for scaler in each.scalers:
                if self._is_reference or scaler.dynamic:
                    scaler.load_state_dict(dict(scaler.state_dict(), loss_scale=start["scale"]))

    def _keep_gradients(self):
        self._kept = [
            self._store.put(tensor.grad)
            for tensor in self._modules.tensors().values()
            if tensor.grad is not None and tensor.grad.layout is torch.strided
        ]

    def _stop(self):
        for mode in (self._recorder, self._maxima):
            if mode is not None and mode.is_entered:
                mode.__exit__(None, None, None)

    def _finish(self):
        recorder, self._recorder, self.is_done = self._recorder, None, True
        recorder.__exit__(None, None, None)
        if not recorder.losses:  # the script ended before the step
            return
        record = StepRecord(recorder.ops, recorder.values, recorder.losses, self._kept, self._store.left_out)
        if self._is_reference:
            self._store.flush()
            with open(self._path(RECORD), "wb") as file:
                pickle.dump((record, self._store), file)
            self._events.append({"first_difference": {"ops": len(record.ops)}})
            return
        with open(self._path(RECORD), "rb") as file:
            reference, store = pickle.load(file)
        with self._without_casts(), torch.no_grad():
            found = compare_steps.compare(reference, store, record, self._store, self._rules(), self._low())
        self._events.append({"first_difference": found})

    def _without_casts(self):
        return self._session.process_casts.paused() if self._session is not None else torch.no_grad()

    def _low(self):
        """Return the half dtype of the level, or None."""
        policy = getattr(self._session, "policy", None)
        return None if policy is None or policy.opt_level == "O0" else policy.dtypes.low

    def _rules(self):
        """Return ``{function: rule}`` of the op table if functions cast, otherwise an empty dict."""
        rows = getattr(getattr(getattr(self._session, "process_casts", None), "backend", None), "rows", ())
        return {row.name: row.rule for row in reversed(rows)}


class GradientMaximum(OperationCalls):
    """A dispatch mode that computes the largest absolute value in a backward pass, without reading it."""

    def __init__(self):
        super().__init__()
        self._largest = []

    def called(self, function, args, kwargs):
        """Call an operation, and note its largest result in a backward pass."""
        result = function(*args, **kwargs)
        is_strided = isinstance(result, torch.Tensor) and result.layout is torch.strided
        if is_strided and result.is_floating_point() and result.numel() and autograd_node() is not None:
            self._largest.append(result.detach().abs().amax().float())
        return result

    def value(self):
        """Return the maximum of finite values."""
        found = [value for (value,) in Transfer(self._largest).read()]
        return max([value for value in found if value < float("inf")], default=0.0)


def make(recorder, steps):
    """Return the observer of a run, a context manager; its task is in the environment."""
    return ObservedStep(json.loads(ChildEnvironment.from_env().first_difference))


def _write(tensors, values):
    with torch.no_grad():
        for name, tensor in tensors.items():
            value = values.get(name)
            if value is not None and value.shape == tensor.shape:
                tensor.copy_(value)
