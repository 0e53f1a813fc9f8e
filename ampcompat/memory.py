"""Where the memory goes: measured in one step, or estimated before there is one.

Owns: ``memory_report``, ``estimate`` and the records that they return.
Must not touch: the training; the user's own ``step`` does it.
The surprise: both work without amp too, so that a script can be measured before it is changed.
"""

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from types import MethodType
from typing import List, Optional

import torch

from .errors import AmpError, AmpTypeError, told_plainly
from .parts import footprint, memory_words
from .parts.memory_kinds import Kinds, Reading
from .parts.optimizers import SLOT
from .parts.patching import PatchStack
from .runtime import requests, state
from .runtime.memory_watch import MemoryWatch
from .tables import opt_levels

__all__ = ["Estimate", "MemoryReport", "estimate", "memory_report"]

#: Iterations that may be skipped before the one that is measured: a dynamic loss scale begins high.
_MOST_TRIES = 10


@dataclass
class Estimate:
    """Predicted bytes of training: by kind, by the formula, and with what this package holds beyond it.

    Attributes:
        level: the opt level.
        elements: of the params.
        parameters, gradients, masters, optimizer: bytes, what is beyond the formula among them.
        buffers: of the model, and the casts of weights that O1 and O4 keep.
        formula: the formula's sum: for Adam at O2, 16 bytes per param.
        total: the sum of all of the above. Activations and temporaries come on top: they depend on the batch.
        explanations: sentences on the difference between ``formula`` and ``total``.
    """

    level: str
    elements: int
    parameters: int
    gradients: int
    masters: int
    optimizer: int
    buffers: int
    formula: int
    total: int
    explanations: List[str]
    footprint: footprint.Footprint

    @classmethod
    def of(cls, found, level):
        """Return the ``Estimate`` that a ``Footprint`` is."""
        full = found.full
        return cls(
            level=level,
            elements=found.elements,
            parameters=full.parameters,
            gradients=full.gradients,
            masters=full.masters,
            optimizer=full.optimizer,
            buffers=full.buffers,
            formula=found.formula,
            total=found.total,
            explanations=memory_words.additions(found),
            footprint=found,
        )

    def record(self):
        """Return the fields of ``abtest.Memory`` as a dict."""
        return self.footprint.record()

    def table(self):
        """Return a table of the kinds, and a sentence for each difference from the formula."""
        columns = [("formula", self.footprint.kinds, True), ("predicted", self.footprint.full, True)]
        head = "Predicted at {} for {:,} params, before activations".format(self.level, self.elements)
        return "\n".join([head, memory_words.table(columns, self.elements)] + self.explanations)

    __str__ = table


@dataclass
class MemoryReport:
    """What a step was measured to hold, beside what was predicted.

    Attributes:
        at_peak: bytes by kind at the moment when their sum was greatest; None is not measured.
        most: each kind at its own greatest, which may be at different moments.
        peak_total: the sum at the peak.
        predicted: the ``Estimate``, or None where none could be made.
        reading: all that was measured, the numbers of CUDA's allocator among it.
        explanations: sentences on the differences.
    """

    level: str
    elements: int
    at_peak: Kinds
    most: Kinds
    peak_total: int
    predicted: Optional[Estimate]
    reading: Reading
    explanations: List[str]

    def record(self):
        """Return the fields of ``abtest.Memory`` as a dict."""
        return self.reading.record()

    def table(self):
        """Return a table of the kinds, measured and predicted, and a sentence for each difference."""
        columns = [("at the peak", self.at_peak, True), ("at its own peak", self.most, False)]
        if self.predicted is not None:
            found = self.predicted.footprint
            columns += [("predicted", found.full, True), ("formula", found.kinds, True)]
        head = "Memory of one step at {}, {:,} params".format(self.level, self.elements)
        return "\n".join([head, memory_words.table(columns, self.elements)] + self.explanations)

    __str__ = table


@told_plainly
def memory_report(model, optimizer, step):
    """Measure where the memory goes in one training step, and predict it.

    Args:
        model: a module or a list of them, initialized by ``amp.initialize`` or plain.
        optimizer: an optimizer or a list of them.
        step: a function of no arguments that does one iteration: forward pass, backward pass, ``optimizer.step()``. It
            is called until one iteration was not skipped for an overflow (ten times at most), so that optimizers have
            their state, and then once more, measured, which is a few times slower.

    Returns:
        A ``MemoryReport``; print it, or its ``table()``. Bytes are counted once per storage, so that views and tied
        weights count once. Activations need torch 1.10, temporaries torch 2.0; on CUDA the allocator's own numbers come
        along.

    Raises:
        AmpTypeError: the arguments are no modules, no optimizers, no function.
    """
    models = _listed(model, _is_module, "model", "a torch.nn.Module or a list of them")
    optimizers = _listed(optimizer, requests.is_optimizer, "optimizer", "an optimizer or a list of them")
    if not callable(step):
        raise AmpTypeError("memory_report expected step to be a function, not {}.".format(type(step).__name__))
    session = state.current()
    if session is not None and not any(hasattr(each, SLOT) for each in optimizers):
        session = None
    for _ in range(_MOST_TRIES):
        step()
        if not _was_skipped(optimizers):
            break
    reading = _measured(session, models, optimizers, step)
    policy = session.policy if session is not None else None
    level = "float32 without amp" if policy is None else policy.opt_level
    with session.process_casts.paused() if session is not None else nullcontext():
        found, sentences = _predicted(models, optimizers, policy)
    if _was_skipped(optimizers):
        sentences.append("The measured step was skipped for an overflow: optimizers made no state and no temporaries.")
    return MemoryReport(
        level=level,
        elements=_elements(models),
        at_peak=reading.at_peak,
        most=reading.most,
        peak_total=reading.at_peak.total,
        predicted=None if found is None else Estimate.of(found, level),
        reading=reading,
        explanations=memory_words.differences(reading, found) + sentences,
    )


def _was_skipped(optimizers):
    return any(getattr(each, SLOT).skips.was_last() for each in optimizers if hasattr(each, SLOT))


def _measured(session, models, optimizers, step):
    watch = MemoryWatch(first=(0,), every=None)
    watch.initialized(None, models, optimizers)  # of no session: the prediction is made by the caller, with its reasons
    with PatchStack() as patches:
        if session is not None:
            session.observers.append(watch)
            patches.defer(session.observers.remove, watch)
        for each in optimizers:
            if not hasattr(each, SLOT):
                patches.set(each, "step", MethodType(_watched(each.step, watch), each))
        watch.begin_step(0)
        try:
            step()
        finally:
            watch.closed(session)
    return watch.reading


def _watched(step, watch):
    """Return a method that steps and tells ``watch`` of it."""

    @functools.wraps(step)
    def watched(self, *args, **kwargs):
        watch.before_step(None)
        try:
            return step(*args, **kwargs)
        finally:
            watch.after_step(None)

    return watched


def _predicted(models, optimizers, policy):
    try:
        return footprint.existing(models, optimizers, policy), []
    except AmpError as error:
        return None, ["No prediction: {}".format(error)]


def _elements(models):
    params = {id(param): param.numel() for model in models for param in model.parameters()}
    return sum(params.values())


def _is_module(candidate):
    return isinstance(candidate, torch.nn.Module)


def _listed(given, accepts, name, expected):
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    for each in listed:
        if not accepts(each):
            raise AmpTypeError("Expected {} to be {}, not {}.".format(name, expected, type(each).__name__))
    return listed


@told_plainly
def estimate(model, optimizer_class, level="O1", dtypes=None, keep_fp32=None, **options):
    """Predict the memory of training, before anything is allocated for it.

    Args:
        model: a float32 module that ``initialize`` has not seen; it may be on torch's meta device, in no memory.
        optimizer_class: a class of optimizers, or a function that makes one of a list of params:
            ``lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)``. It is tried on small tensors.
        level: "O0" … "O5".
        dtypes: a ``tables.opt_levels.DtypePair`` instead of the level's own.
        keep_fp32, **options: as in ``amp.initialize``.

    Returns:
        An ``Estimate``; print it, or its ``table()``.

    Raises:
        AmpError: an unknown level, an option that makes no sense for it, an optimizer that cannot be tried.
    """
    (model,) = _listed(model, _is_module, "model", "a torch.nn.Module")
    if not callable(optimizer_class):
        raise AmpTypeError(
            "estimate expected a class of optimizers or a function that makes one of a list of params, not {}.".format(
                type(optimizer_class).__name__
            )
        )
    _, policy = opt_levels.resolve(level, options, None, dtypes)
    kept = [] if keep_fp32 is None else list(keep_fp32) if isinstance(keep_fp32, (list, tuple, set)) else [keep_fp32]
    session = state.current()
    with session.process_casts.paused() if session is not None else nullcontext():
        return Estimate.of(footprint.planned(model, optimizer_class, policy, kept), policy.opt_level)
