"""Run a training step of a real session on fake tensors, under the meter that measures real steps.

So a prediction and a measurement differ only in the tensors: half copies, master weights, gradients, checkpoints and
    optimizers are those of the level, in the same order.
"""

from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Callable, List, NamedTuple

import torch

from ... import amp
from ...engine.casting import emulated_half_arithmetic
from ...engine.loss_scaling.overflow_check import OverflowCheck
from ...engine.session import process_state
from ...engine.session.training_session import Session
from ...errors import AmpError
from ...support import random_state
from ...support.patching import PatchStack
from ...support.torch_compat import fake_tensors, features
from . import storages
from .assumed_values import AssumedValues
from .fake_modules import convert_in_place, fake_copies, offload
from .memory_observer import measured_step
from .optimizer_state import needs_closure
from .ranks_and_zero_stages import Ranks

#: The multiple to which CUDA's caching allocator rounds up each allocation, in bytes.
CUDA_UNIT = 512


class UnsupportedStep(AmpError):
    """The step cannot run on fake tensors; the message contains the operation."""


class Training(NamedTuple):
    """The models to train, and how.

    Attributes:
        models: modules, on any device; they are copied.
        make_optimizers: functions: list of params -> optimizer, one for each model.
        make_step: a function: (models, optimizers) -> a function of no arguments that does one iteration.
        policy: the level's ``Policy``.
        options: further keyword arguments of ``amp.initialize``.
        counted_as: "cpu" or "cuda", the device to predict for.
        ranks: the ``Ranks``.
    """

    models: List[torch.nn.Module]
    make_optimizers: List[Callable[..., Any]]
    make_step: Callable[..., Callable[[], Any]]
    policy: Any
    options: dict
    counted_as: str
    ranks: Ranks = Ranks()


def measure(training):
    """Return (the ``MemoryUsage`` of a fake step, sentences on assumptions).

    Raises:
        UnsupportedStep: an operation cannot be computed without values.
        AmpError: this torch has no fake tensors, or a model cannot be copied.
    """
    mode = fake_tensors.new_mode()
    values = AssumedValues()
    with ExitStack() as contexts:
        contexts.enter_context(random_state.restored())
        contexts.enter_context(training.ranks.joined())
        contexts.enter_context(counted_as(training.counted_as))
        for context in (mode, values):
            contexts.enter_context(context)
        session = contexts.enter_context(_own_session(training.policy))
        try:
            return _measured(training, session, mode), assumptions(values)
        except Exception as error:
            sentence = None if isinstance(error, UnsupportedStep) else why_unsupported(error, values)
            if sentence is None:
                raise
            raise UnsupportedStep(sentence) from error


def loss_step(loss, accumulate, models, optimizers):
    """Return a function that does one iteration of one model.

    Args:
        loss: model -> loss.
        accumulate: how many backward passes share an optimizer step.
        models, optimizers: lists of one.
    """
    (model,), (optimizer,) = models, optimizers
    accumulation = amp.accumulate(optimizer, accumulate) if accumulate > 1 else None

    def plain():
        with amp.scale_loss(loss(model), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def accumulated():
        for _ in range(accumulate):
            with accumulation.scale_loss(loss(model)) as scaled_loss:
                scaled_loss.backward()
            accumulation.step()

    return plain if accumulation is None else accumulated


def _measured(training, session, mode):
    copies, copied = fake_copies(training.models, mode)
    optimizers = []
    for model, make in zip(copies, training.make_optimizers):
        training.ranks.spread(model, copied, training.policy)
        optimizer = training.ranks.optimizer(make, list(model.parameters()))
        if needs_closure(optimizer):
            raise UnsupportedStep(
                f"Activations and temporaries are not predicted, since {type(optimizer).__name__}.step needs a closure."
            )
        if training.counted_as == "cuda":
            choose_foreach(optimizer)
        optimizers.append(optimizer)
    options = _copied_layers(training.options, copied)
    amp.initialize(copies, optimizers, opt_level=training.policy.opt_level, verbosity=0, **options)
    usage = measured_step(session, copies, optimizers, training.make_step(copies, optimizers))
    buckets = sum(training.ranks.bucket_bytes(model) for model in copies)
    if buckets:
        usage.at_peak = usage.at_peak.plus("gradients", buckets)
        usage.peak_by_kind = usage.peak_by_kind.plus("gradients", buckets)
    return usage


def _copied_layers(options, copied):
    """Return the options with the copies of the modules that ``keep_fp32`` lists."""
    layers = options.get("keep_fp32")
    if not isinstance(layers, (list, tuple)):
        layers = [] if layers is None else [layers]
    return dict(options, keep_fp32=[copied.get(id(layer), layer) for layer in layers])


@contextmanager
def counted_as(device):
    """Count a step as on another device, although its fake tensors are on the CPU.

    For "cuda", half is not emulated, overflow checks and losses are those on CUDA, and allocations are rounded up.
    """
    with PatchStack() as patches:
        patches.set(OverflowCheck, "overflowed", lambda check: False)
        convert_in_place(patches)
        if device == "cuda":
            patches.set(emulated_half_arithmetic, "setting", lambda: "off")
            patches.set(features, "has_mixed_batch_norm", lambda *args: True)
            patches.set(storages, "UNIT", CUDA_UNIT)
            patches.defer(_set_onednn, _set_onednn(False))
            offload(patches)
        yield


def _set_onednn(is_enabled):
    """Set whether torch uses oneDNN's kernels; return the previous setting."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = is_enabled
    return before


def choose_foreach(optimizer):
    """Make an optimizer step on lists of tensors if its options leave the choice to torch, as torch does on CUDA."""
    for group in optimizer.param_groups + getattr(getattr(optimizer, "optim", None), "param_groups", []):
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


@contextmanager
def _own_session(policy):
    """Open a session at a level, within another one if there is one, ignoring overrides of the command line."""
    outer = process_state.current()
    session = Session(overrides={"opt_level": policy.opt_level}, dtypes=policy.dtypes, verbosity=0)
    with PatchStack() as patches, outer.cast_backend.paused() if outer is not None else nullcontext():
        patches.set(process_state, "initialize_options", {})
        process_state.sessions.append(session)
        try:
            yield session
        finally:
            session.close()


# -- unsupported operations --------------------------------------------------------------------------------------------


def assumptions(values):
    """Return sentences on assumed values."""
    if not values.integers_read:
        return []
    return [
        "The step reads integers from tensors (`Tensor.item()`), which are taken as 1: if a size depends on them, "
        "the prediction is wrong."
    ]


def why_unsupported(error, values):
    """Return a sentence that says which operation needs values or has no fake kernel; None for any other error."""
    name = values.failed
    if isinstance(error, fake_tensors.unsupported_errors()) or (name is not None and _lacks_kernel(error)):
        return "Activations and temporaries are not predicted, since the step calls {}, {}.".format(
            name or str(error).split("\n")[0],
            "whose result or its size depends on values" if not _lacks_kernel(error) else "which has no fake kernel",
        )
    if ".numpy() is not supported" in str(error) or "data is not allocated yet" in str(error):
        return "Activations and temporaries are not predicted, since the step reads the memory of a tensor: {}".format(
            str(error).split("\n")[0]
        )
    return None


def _lacks_kernel(error):
    text = str(error)
    return isinstance(error, NotImplementedError) or "fake impl" in text or "FakeTensor" in type(error).__name__
