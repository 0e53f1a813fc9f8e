"""Run a training step of a real session on fake tensors, under the meter that measures real steps.

So a prediction and a measurement differ only in the tensors: half copies, master weights, gradients, checkpoints and
optimizers are those of the level, in the same order.
"""

import inspect
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Callable, NamedTuple

import torch

from ... import amp
from ...engine.casting import emulated_half_arithmetic
from ...engine.loss_scaling.overflow_check import OverflowCheck
from ...engine.session import process_state
from ...engine.session.training_session import Session
from ...errors import AmpError
from ...observers.memory import allocations
from ...observers.memory.memory_observer import measured_step
from ...support import random_state
from ...support.patching import PatchStack
from ...support.torch_compat import fake_tensors, features
from .assumed_values import AssumedValues
from .fake_modules import convert_in_place, fake_copy, offload

#: The multiple to which CUDA's caching allocator rounds up each allocation, in bytes.
CUDA_UNIT = 512


class UnsupportedStep(AmpError):
    """The step cannot run on fake tensors; the message contains the operation."""


class Training(NamedTuple):
    """The model to train, and how.

    Attributes:
        model: a module, on any device; it is copied.
        make_optimizer: a function: list of params -> optimizer.
        loss: a function: model -> loss.
        accumulate: how many backward passes share an optimizer step.
        policy: the level's ``Policy``.
        options: further keyword arguments of ``amp.initialize``; ``keep_fp32`` is a list.
        counted_as: "cpu" or "cuda", the device to predict for.
    """

    model: torch.nn.Module
    make_optimizer: Callable[..., Any]
    loss: Callable[..., torch.Tensor]
    accumulate: int
    policy: Any
    options: dict
    counted_as: str


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


def _measured(training, session, mode):
    model, copied = fake_copy(training.model, mode)
    optimizer = training.make_optimizer(list(model.parameters()))
    if _needs_closure(optimizer):
        raise UnsupportedStep(
            f"The memory of this step cannot be predicted, since {type(optimizer).__name__}.step needs a closure."
        )
    if training.counted_as == "cuda":
        choose_foreach(optimizer)
    layers = [copied.get(id(layer), layer) for layer in training.options["keep_fp32"]]
    options = dict(training.options, keep_fp32=layers)
    amp.initialize(model, optimizer, opt_level=training.policy.opt_level, verbosity=0, **options)

    def step():
        for _ in range(training.accumulate):
            with amp.scale_loss(training.loss(model) / training.accumulate, optimizer) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return measured_step(session, [model], [optimizer], step)


def _needs_closure(optimizer):
    """Return whether an optimizer, such as LBFGS, cannot step without a function that computes the loss."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is parameter.empty


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
            patches.set(allocations, "UNIT", CUDA_UNIT)
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
        return "The memory of this step cannot be predicted, since it calls {}, {}.".format(
            name or str(error).split("\n")[0],
            "whose result or its size depends on values" if not _lacks_kernel(error) else "which has no fake kernel",
        )
    if ".numpy() is not supported" in str(error) or "data is not allocated yet" in str(error):
        return "The memory of this step cannot be predicted, since it reads the memory of a tensor: {}".format(
            str(error).split("\n")[0]
        )
    return None


def _lacks_kernel(error):
    text = str(error)
    return isinstance(error, NotImplementedError) or "fake impl" in text or "FakeTensor" in type(error).__name__
