"""``Audit``: observes a training run in its own precision, and says what the precision does to it."""

import sys
import weakref
from typing import Any, Dict, List, Optional, Sequence

import torch

from ...abtest.recording.event_sources import FinalEvent
from ...engine.session import process_state
from ...errors import AmpError
from ...launch.forced_levels.trained_modules import outermost, trained_params
from ...support.live_objects import all_objects
from ...support.patching import PatchStack
from ...support.torch_compat import features, step_hooks
from ...support.torch_compat.torch_names import dtype_name
from . import findings, tensor_rows
from .audit_text import to_text
from .forward_pass import ForwardPasses
from .script_calls import RankSums, ScriptCalls, StepGradients
from .tensor_rows import TensorRow
from .weight_averages import WeightAverages
from .weight_updates import PERIOD, WINDOW, WeightUpdates

OLD_TORCH = "An audit needs torch 2.1 or newer, which calls hooks at every optimizer's step; this is {}."


def audit(argv: Optional[Sequence[str]] = None) -> "Audit":
    """Observe the training in a ``with`` block, as it is, and say what its precision does to it.

    ``print(audit)`` shows the report, ``audit.wrong`` lists what is wrong, and ``audit.report()`` has all of it::

        with ampcompat.audit() as audit:
            train()
        assert not audit.wrong, audit

    In the block, half weights and their optimizer's state have float32 copies, with which 5 of 25 steps are repeated.

    Args:
        argv: the script's arguments, of which one may ask for half precision; None: ``sys.argv`` at the first step.

    Raises:
        AmpError: torch is older than 2.1.
    """
    return Audit(argv)


class Audit:
    """The context manager that ``audit`` returns; what it computes, it computes without autograd."""

    def __init__(self, argv=None):
        if not features.is_version_within(oldest="2.1"):
            raise AmpError(OLD_TORCH.format(features.version()))
        self._argv = argv
        self._new = []  # optimizers whose models are not noted
        self._patches = PatchStack()
        self._updates, self._averages = WeightUpdates(), WeightAverages()
        self._calls, self._gradients = ScriptCalls(self._before_clip, self._updates.first), StepGradients()
        self._forward = ForwardPasses()
        self._sums = RankSums()
        self._names, self._buffers = {}, {}  # of the models' params and buffers: tensor -> name
        self._masters = {}  # amp's master, which its optimizer has -> the model's param
        self._models = []  # (a weak reference to it, {name: param} of those that are trained)
        self._replaced = {}  # param -> the dtype of the one that the model has in its place

    def __enter__(self) -> "Audit":
        features.read()  # once in a process, it enters a region of each dtype, which is not the script's
        self._patches.defer(self._forward.end)
        self._calls.watch(self._patches)
        self._sums.watch(self._patches)
        step_hooks.register(self._patches, self._before_step, self._after_step)
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._note_models()
        finally:
            self._patches.undo()

    @torch.no_grad()
    def _before_step(self, optimizer, args, kwargs):
        self._forward.end(optimizer, self._calls.entered)
        self._averages.compare(begins=False)
        if self._averages.replaced:
            self._look_for_averages(all_objects(torch.Tensor))
        if not self._updates.has(optimizer):
            self._new.append(optimizer)
            self._argv = sys.argv[1:] if self._argv is None else self._argv
        if self._updates.steps % WINDOW == 0:
            self._note_replaced()
        self._calls.before_step()
        self._gradients.before_step(optimizer)
        self._count_gradients(optimizer)
        self._updates.before_step(optimizer)

    @torch.no_grad()
    def _before_clip(self):
        for watched in self._updates.optimizers():
            self._count_gradients(watched.optimizer)

    def _count_gradients(self, optimizer):
        if self._calls.scaled is None and (torch.float16 in self._calls.regions or _has_float16(optimizer)):
            self._gradients.count(optimizer)

    @torch.no_grad()
    def _note_models(self):
        """Note names, buffers and averages now: when the run has ended, the script's models may be gone."""
        optimizers, self._new = self._new, []
        if not optimizers:
            return []
        objects = all_objects(torch.nn.Module, torch.Tensor)
        modules = [each for each in objects if isinstance(each, torch.nn.Module)]
        self._masters.update(_masters())
        trained = trained_params(optimizers)
        halves = {id(param): master for master, param in self._masters.items()}
        models = outermost(set(trained).union(key for key in halves if id(halves[key]) in trained), modules)
        self._sums.look(modules)
        for model in models:
            params = dict(model.named_parameters())
            self._names.update((param, name) for name, param in params.items())
            self._models.append(
                (weakref.ref(model), {name: each for name, each in params.items() if id(each) in trained})
            )
            self._buffers.update((buffer, name) for name, buffer in model.named_buffers())
        self._look_for_averages([each for each in objects if isinstance(each, torch.Tensor)])
        return models

    def _look_for_averages(self, tensors):
        halves = set(map(id, self._masters.values()))
        tensors = [each for each in tensors if id(each) not in halves]
        self._averages.look(tensors, self._updates.optimizers(), self._names, self._patches)

    def _note_replaced(self):
        for model, params in [(reference(), params) for reference, params in self._models]:
            for name, now in model.named_parameters() if model is not None else ():
                before = params.get(name)
                if before is not None and before is not now and before.dtype is not now.dtype:
                    self._replaced[before] = now.dtype

    @torch.no_grad()
    def _after_step(self, optimizer, args, kwargs):
        steps = self._updates.after_step(optimizer)
        self._gradients.after_step(optimizer)
        models = self._note_models() if steps > 1 else []
        self._averages.compare(begins=self._updates.steps % PERIOD < WINDOW)
        if models:
            self._forward.begin(models, optimizer, self._calls.entered)

    def __str__(self) -> str:
        return to_text(self.report(), (sys.argv[:1] or ["the script"]) + list(self._argv or ()))

    @property
    def wrong(self) -> List[Dict[str, Any]]:
        """The findings of ``report`` that are wrong; waits for the devices."""
        return [each for each in self.report()["findings"] if each["is_wrong"]]

    @torch.no_grad()
    def report(self) -> Dict[str, Any]:
        """Return the report as a dict that JSON can hold; waits for the devices.

        ``steps``: of optimizers, without those that step with others; ``repeated``: how many of them were compared with
        steps of float32 weights; ``dtypes``: ``{"weights", "masters" or "buffers": {dtype: elements}, "activations":
        a dict with the keys of ``LayerDtypes`` and ``calls`` for each layer, or None if functions have been compiled,
        "averages" (of weights), "gradients" or "autocast": dtypes, "sums between ranks": {dtype: names of functions},
        "optimizer state": {name: dtypes}}``; ``findings``: dicts with the keys of ``AuditFinding``, wrong ones first;
        ``tensors``: a dict with the keys of ``TensorRow`` for each weight, master, buffer and average.
        """
        self._note_models()
        alike = self._updates.alike()
        updates = [each.params() for each in alike]
        rows = self._rows(alike, updates)
        found = sorted(self._findings(zip(alike, updates), rows), key=lambda each: not each.is_wrong)
        return {
            "steps": self._updates.steps,
            "repeated": sum(each.compared for each in self._updates.optimizers()),
            "dtypes": self._dtypes(rows),
            "findings": [dict(each._asdict(), layers=[layer._asdict() for layer in each.layers]) for each in found],
            "tensors": [row._asdict() for row in rows],
        }

    def _findings(self, pairs, rows):
        for alike, params in pairs:
            yield from findings.of_optimizers(alike, params, self._names)
        yield from findings.replaced_params(self._replaced, self._names)
        yield from findings.average_stands_still(*self._averages.standing_still())
        yield from findings.undone_casts(self._forward.casts.undone.values())
        yield from findings.autocast_and_scaler(self._calls, self._gradients)
        yield from findings.half_sums(self._calls, self._sums)
        if not (self._forward.may_see_half(self._calls.regions) or tensor_rows.any_half(rows)):
            yield from findings.dead_flag(self._argv or ())

    def _rows(self, alike, updates):
        weights, masters = dict(self._names), {}
        for param in [param for each in self._updates.optimizers() for param in each.all_params()]:
            if param in self._masters:
                masters[param] = self._names.get(self._masters[param])
            else:
                weights.setdefault(param)
        buffers = [(each, name) for each, name in self._buffers.items() if each.is_floating_point()]
        states = {param: state for each in alike for param, state in each.state().items()}
        facts = self._gradients.dtypes, states, {param: each for found in updates for param, each in found.items()}
        return [
            *tensor_rows.of_params("weight", weights, *facts),
            *tensor_rows.of_params("master", masters, *facts),
            *[TensorRow("buffer", name, dtype_name(each.dtype), each.numel()) for each, name in buffers],
            *[TensorRow("average", each.name, dtype_name(each.dtype), each.numel) for each in self._averages.all()],
        ]

    def _dtypes(self, rows):
        layers = self._forward.layers
        return {
            **tensor_rows.totals(rows),
            "activations": layers and [dict(layer._asdict(), calls=calls) for layer, calls in layers.items()],
            "autocast": sorted(map(dtype_name, self._calls.regions)),
            "sums between ranks": {name: list(functions) for name, functions in self._sums.dtypes.items()},
        }


class AuditEvent(Audit, FinalEvent):
    """An ``Audit`` whose event has its report, of a recorded run."""

    key = "audit"

    def found(self):
        """Return the report when the run has ended."""
        report = self.report()
        if not report["steps"]:
            raise AmpError("it did not make a step")
        return report


def make(recorder, steps):
    """Return the observer of a run (see ``RunOptions``), a context manager."""
    return AuditEvent()


def _has_float16(optimizer):
    return any(param.dtype is torch.float16 for group in optimizer.param_groups for param in group["params"])


def _masters():
    """Return ``{master: the model's param}`` of what ``amp`` trains now."""
    records = [record for session in process_state.sessions for record in session.records]
    return {master: param for record in records for param, master in record.pairs()}
