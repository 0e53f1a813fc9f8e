"""Observes a float32 run for a forecast: records some steps op by op, and also does each optimizer step in half.

``RunOptions(watch="ampcompat.diagnostics.forecast.forecast_observer")`` adds the forecast to the events of a recorded
run. Between the recorded steps, the script runs with a function mode that forwards every call, and optimizer hooks.
"""

import math
from typing import Dict, List, NamedTuple

import torch

from ... import amp
from ...abtest.judging import curves
from ...abtest.recording.event_sources import FinalEvent
from ...apex.multi_tensor.foreach_ops import norms
from ...engine.models.cast_weights import is_batch_norm
from ...errors import AmpError
from ...observers.exponents import Stats, TensorSamples
from ...support import tensor_lists
from ...support.patching import PatchStack
from ...support.torch_compat import features, step_hooks
from ...support.torch_compat.torch_names import dtype_name
from . import forecast_json
from .half_updates import HalfUpdates
from .op_calls import OpCalls, RecordedStep

#: The recorded steps in addition to the first two, as shares of the run.
SHARES = (0.1, 0.4, 1.0)

#: The number of optimizer steps of a run without a limit.
STEPS = 50

OLD_TORCH = "A forecast needs torch 2.1 or newer, whose hooks also run after a layer raises an error; this is {}."


class Sampled(NamedTuple):
    """A recorded step, its number in the run, and the ``Stats`` of values, gradients, and details (see ``OpCalls``)."""

    number: int
    record: RecordedStep
    values: Dict[int, Stats]
    gradients: Dict[int, Stats]
    details: Dict[int, Stats]


class Param(NamedTuple):
    """The updates of a param: ``progress`` is -<gradient, update>, the decrease of the loss to first order.

    ``kept``: from ``half_updates``, 1.0 if unknown; ``update`` and ``weight``: root mean squares at the last recorded
    step; ``eps``: the optimizer's, 0.0 if it has none.
    """

    model: int
    name: str
    progress: float
    kept: float
    is_finite: bool
    update: float
    weight: float
    optimizer: str
    eps: float


class Observed(NamedTuple):
    """The data for a forecast.

    ``stated``: the arguments of ``amp.initialize``, empty in a script without it. ``gradients``: the largest absolute
    gradient of a param, at each call of an optimizer's ``step``. ``problems``: optimizers that do not step in half.
    ``half_dtypes``: those that weights had in the script, which were cast to float32. ``uncompiled``: the names of what
    the script compiles, which ran uncompiled.
    """

    steps: List[Sampled]
    params: List[Param]
    batch_norms: frozenset
    stated: dict
    losses: List[float]
    gradients: List[float]
    problems: Dict[str, str]
    half_dtypes: List[str]
    uncompiled: List[str]


class ForecastObserver(FinalEvent):
    """The observer, and a context manager: its changes to torch are undone on exit.

    Its event has what ``forecast_json.make`` returns.

    Args:
        recorder: the ``Recorder`` of the run.
        steps: the number of optimizer steps of the run, or None.
    """

    key = "forecast"

    def __init__(self, recorder, steps):
        if not features.is_version_within(oldest="2.1"):
            raise AmpError(OLD_TORCH.format(features.version()))
        steps, self._recorder = steps or STEPS, recorder
        self._recorded = {0, 1} | {int(share * (steps - 1)) for share in SHARES}
        self._samples = TensorSamples()
        self._calls = OpCalls(self._take_value, self._take_detail)
        self._updates = HalfUpdates()
        self._patches = PatchStack()
        self._is_on, self._number, self._step = False, -1, 0
        self._handles, self._before = [], []
        self._optimizers = {}  # id(param) -> (class of its optimizer, its eps)
        self._progress, self._sizes = {}, {}  # id(param) -> its sum; -> (rms of the update, rms of the weight)
        self._largest = {}  # device -> the largest gradient at each step of an optimizer
        self.steps, self._stated = [], {}
        self._half_dtypes, self._uncompiled = {}, {}  # names of dtypes, and of what is compiled, as keys

    def __enter__(self):
        step_hooks.register(self._patches, self._before_step, self._after_step)
        self._patches.wrap(amp, "_initialize", self._note_options)
        self._patches.redirect(torch.compile, self._note_name)  # a session, which replaces it, may end later
        self._calls.start()
        self._begin()
        return self

    def __exit__(self, *error):
        self._end()
        self._calls.stop()
        self._patches.undo()

    def _note_options(self, initialize, stated):
        """Note the last value of each argument of ``amp.initialize`` that is not None."""
        kept = {name: value for name, value in self._stated.items() if stated.get(name) is None}
        self._stated = {**stated, **kept}
        return initialize(stated)

    def _note_name(self, compile_, model=None, **kwargs):
        """Note the name of a function that is compiled, or of the class of a module."""
        owner = getattr(model, "__self__", model)  # of a bound method: ``module.compile()`` compiles one
        name = type(owner).__name__ if isinstance(owner, torch.nn.Module) else getattr(model, "__qualname__", "?")
        self._uncompiled.update({} if model is None else {name: None})
        return compile_(model, **kwargs)

    # -- what the session and the recorder tell ------------------------------------------------------------------------

    def initialized(self, session, models, optimizers):
        """Name the modules of the models, and note whether their weights were half."""
        for dtype in [dtype for each in session.configurations for dtype in each.half_dtypes]:
            self._half_dtypes.setdefault(dtype_name(dtype))
        self._calls.add_models(models)
        if self._is_on:  # nothing of the step has happened yet
            self._calls.end()
            self._samples.clear()
            self._begin()

    def before_backward(self, backward):
        self._calls.add_loss(backward.loss)

    def step_ended(self, next_step):
        """Read a recorded step, and start recording the next one if needed; None: the run has ended."""
        super().step_ended(next_step)
        self._end()
        self._step = next_step
        if next_step in self._recorded:
            self._begin()

    def found(self):
        """Return the forecast when the run has ended."""
        return forecast_json.make(self.observed(curves.curve(self._recorder.run, ("loss", 0))))

    def observed(self, losses):
        """Return the ``Observed`` of the run.

        Args:
            losses: the mean loss of each step.
        """
        kept, params, norms = self._updates.kept(), [], set()
        for number, model in self._calls.models():
            for name, module in model.named_modules():
                if is_batch_norm(module):
                    norms.add((number, name))
            for name, param in model.named_parameters():
                if id(param) in self._sizes:
                    followed = kept.get(id(param), (1.0, True))
                    facts = (self._progress[id(param)],) + followed + self._sizes[id(param)]
                    params.append(Param(number, name, *facts, *self._optimizers[id(param)]))
        by_device = [torch.stack(each).tolist() for each in self._largest.values()]
        gradients = [max(each) for each in zip(*by_device)] if by_device else []
        return Observed(
            self.steps,
            params,
            frozenset(norms),
            self._stated,
            losses,
            gradients,
            self._updates.problems,
            list(self._half_dtypes),
            list(self._uncompiled),
        )

    # -- a recorded step -----------------------------------------------------------------------------------------------

    def _begin(self):
        self._is_on = True
        self._number += 1
        self._calls.begin()

    def _end(self):
        if not self._is_on:
            return
        self._is_on = False
        record = self._calls.end()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        found = {"value": {}, "gradient": {}, "detail": {}, "progress": {}, "update": {}, "weight": {}}
        for (kind, key), stats in self._samples.read():
            before = found[kind].get(key)
            found[kind][key] = stats if before is None or stats.largest > before.largest else before
        if record.losses:
            self.steps.append(Sampled(self._step, record, found["value"], found["gradient"], found["detail"]))
        for key, stats in found["progress"].items():
            self._progress[key] = self._progress.get(key, 0.0) + stats.maximum
            self._sizes[key] = found["update"][key].rms, found["weight"][key].rms

    def _take_value(self, index, tensor):
        self._samples.add(("value", index), tensor)
        if tensor.requires_grad and torch.is_grad_enabled():
            number = self._number
            handle = tensor.register_hook(lambda gradient: self._take_gradient(number, index, gradient))
            if tensor.is_leaf:
                self._handles.append(handle)

    def _take_gradient(self, number, index, gradient):
        if self._is_on and number == self._number:
            self._samples.add(("gradient", index), gradient)

    def _take_detail(self, index, values):
        self._samples.add(("detail", index), values)

    def _before_step(self, optimizer, args, kwargs):
        self._calls.is_paused = True
        self._updates.before_step(optimizer)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        params = [param for param in params if param.grad is not None and param.numel() and not param.grad.is_sparse]
        with torch.no_grad():
            found = [norms(alike, math.inf).max().float() for alike in tensor_lists.grouped([p.grad for p in params])]
            for device in {each.device for each in found}:
                largest = torch.stack([each for each in found if each.device == device]).max()
                self._largest.setdefault(device, []).append(largest)
            if self._is_on:
                self._before = [(param, param.detach().clone(), param.grad.clone()) for param in params]

    def _after_step(self, optimizer, args, kwargs):
        before, self._before = self._before, []
        with torch.no_grad():
            for param, weight, gradient in before:
                update = param - weight
                self._samples.add(("progress", id(param)), -(gradient * update).sum())
                self._samples.add(("update", id(param)), update)
                self._samples.add(("weight", id(param)), weight)
                self._optimizers[id(param)] = type(optimizer).__name__, _epsilon(optimizer)
        self._calls.is_paused = False


def make(recorder, steps):
    """Return the observer of a run, a context manager."""
    return ForecastObserver(recorder, steps)


def _epsilon(optimizer):
    """Return the smallest eps of an optimizer's groups; 0.0 without one; of a tuple (Adafactor), the first."""
    found = [group["eps"] for group in optimizer.param_groups if group.get("eps")]
    return min([float(each[0] if isinstance(each, (tuple, list)) else each) for each in found], default=0.0)
