"""``memory_report`` measures the memory of a training step, ``estimate`` predicts it; both work without amp too."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Union

import torch

from ... import opt_levels
from ...engine.masters.remainder_master import check_policy
from ...engine.optimizers.optimizer_record import record_of
from ...engine.session import process_state
from ...engine.session.argument_checks import checked_count, checked_list, is_module, is_optimizer, listed
from ...errors import AmpTypeError, AmpValueError, hide_internal_frames
from ...observers.memory.memory_observer import measured_step, was_skipped
from ...observers.memory.memory_report import WITHOUT_AMP, MemoryReport, notes_on
from .fake_step import Training, measure

__all__ = ["MemoryReport", "estimate", "memory_report"]

IS_BOOKKEEPING = True  # see support/script_frames.py


@hide_internal_frames
def memory_report(
    model: Union[torch.nn.Module, Sequence[torch.nn.Module]],
    optimizer: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]],
    step: Callable[[], Any],
) -> MemoryReport:
    """Measure the memory of one training step by kind.

    Args:
        model: a module or a list of them, initialized by ``amp.initialize`` or plain.
        optimizer: an optimizer or a list of them.
        step: a function of no arguments that does one iteration: forward pass, backward pass, ``optimizer.step()``. It
            is called until an iteration is not skipped because of an overflow (at most ten times), so that optimizers
            have their state, and then once more to measure, which is a few times slower.

    Returns:
        A ``MemoryReport``; print it, or its ``table()``. Bytes are counted once per storage, so views and tied weights
        count once. Activations need torch 1.10, temporaries torch 2.0. On CUDA it has the statistics of the allocator
        too.

    Raises:
        AmpTypeError: an argument is not a module, an optimizer or a function.
    """
    models = checked_list(model, "memory_report", "model", "a torch.nn.Module or a list of them", is_module)
    optimizers = checked_list(optimizer, "memory_report", "optimizer", "an optimizer or a list of them", is_optimizer)
    if not callable(step):
        raise AmpTypeError(f"memory_report expected step to be a function, not {type(step).__name__}.")
    session = process_state.current()
    if session is not None and not any(map(record_of, optimizers)):
        session = None
    usage = measured_step(session, models, optimizers, step)
    notes = notes_on(usage)
    if was_skipped(optimizers):
        notes.append("The measured step was skipped because of an overflow: no optimizer state or temporaries.")
    level = WITHOUT_AMP if session is None else session.policy.opt_level
    num_params = sum({id(param): param.numel() for each in models for param in each.parameters()}.values())
    return MemoryReport(level, num_params, usage, notes)


@hide_internal_frames
def estimate(
    model: torch.nn.Module,
    optimizer_class: Callable[[List[torch.nn.Parameter]], torch.optim.Optimizer],
    level: str = "O1",
    dtypes: Optional[opt_levels.DtypePair] = None,
    keep_fp32: Any = None,
    *,
    loss: Callable[[torch.nn.Module], torch.Tensor],
    accumulate: int = 1,
    device: str = "cuda",
    store_param_remainders: bool = False,
    **options: Any,
) -> MemoryReport:
    """Predict the memory of a training step: it is run on torch's fake tensors, which take no memory (torch 2.5).

    Args:
        model: a float32 module before ``initialize``; it may be on the meta device, where it takes no memory. It is not
            changed.
        optimizer_class: an optimizer class, or a function that creates an optimizer from a list of params:
            ``lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)``.
        level: "O0" … "O5".
        dtypes: an ``opt_levels.DtypePair`` instead of the level's own.
        keep_fp32, store_param_remainders, **options: as in ``amp.initialize``.
        loss: a function of the model that creates its inputs and returns the loss, a tensor of shape ().
        accumulate: how often ``loss`` is called per optimizer step.
        device: the device to predict for, wherever the model is: "cuda" for a GPU; "cpu" for this CPU, including the
            float32 copies of emulated half, to compare with ``memory_report``.

    Returns:
        A ``MemoryReport``; print it, or its ``table()``.

    Raises:
        AmpError: an unknown level, an option that is invalid for the level, a torch without fake tensors, a model that
            cannot be copied, or a step that cannot run without values: the message has the operation.
    """
    (model,) = checked_list(model, "estimate", "model", "a torch.nn.Module", is_module)
    _check_function(optimizer_class, "an optimizer class or a function: list of params -> optimizer")
    _check_function(loss, "loss to be a function: model -> loss")
    _, policy = opt_levels.resolve(level, options, None, dtypes)
    if store_param_remainders:
        check_policy(policy)
    if device not in ("cpu", "cuda"):
        raise AmpValueError(f'device must be "cpu" or "cuda", not {device!r}.')
    accumulate = checked_count("accumulate must be", accumulate)
    options = dict(options, keep_fp32=listed(keep_fp32), store_param_remainders=store_param_remainders)
    usage, notes = measure(Training(model, optimizer_class, loss, accumulate, policy, options, device))
    num_params = sum(param.numel() for param in model.parameters())
    return MemoryReport(policy.opt_level, num_params, usage, notes, predicted_for=device)


def _check_function(given, expected):
    if not callable(given):
        raise AmpTypeError(f"estimate expected {expected}, not {type(given).__name__}.")
