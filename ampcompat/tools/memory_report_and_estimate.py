"""``memory_report`` measures the memory of a training step, ``estimate`` predicts it; both work without amp too."""

from __future__ import annotations

import dataclasses
import functools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import torch

from .. import opt_levels
from ..engine.optimizers.optimizer_record import record_of
from ..engine.optimizers.stored_master import check_policy
from ..engine.session import process_state
from ..engine.session.argument_checks import checked_count, checked_list, is_module, is_optimizer, listed
from ..errors import AmpError, AmpTypeError, AmpValueError, hide_internal_frames
from ..support.torch_compat import fake_tensors
from .memory import memory_table
from .memory.batch_sizes import BatchTable, batch_table
from .memory.bytes_by_kind import MemoryUsage
from .memory.fake_step import Training, UnsupportedStep, counted_as, loss_step, measure
from .memory.formulas import WITHOUT_AMP, Estimate, before_initialize, during_training
from .memory.memory_observer import measured_step, was_skipped
from .memory.ranks_and_zero_stages import WAYS, Ranks
from .memory.shard_layout import Sharding, StateSharding

__all__ = ["BatchTable", "Estimate", "MemoryReport", "estimate", "estimate_batches", "memory_report"]

IS_BOOKKEEPING = True  # see support/script_frames.py


@dataclass
class MemoryReport:
    """The measured memory of one step, and the prediction.

    Attributes:
        level: the opt level, or "float32 without amp".
        num_params: the number of elements of the params.
        usage: the ``MemoryUsage``: all measurements, with the statistics of CUDA's allocator.
        predicted: the ``Estimate``, or None without a prediction.
        explanations: sentences on the differences.
        at_peak, peak_by_kind: those of ``usage``: bytes per kind; None means not measured.
        peak_total: the sum at the peak, in bytes.
    """

    level: str
    num_params: int
    usage: MemoryUsage
    predicted: Optional[Estimate]
    explanations: List[str]

    def __post_init__(self):
        self.at_peak, self.peak_by_kind = self.usage.at_peak, self.usage.peak_by_kind
        self.peak_total = self.at_peak.total

    def record(self) -> Dict[str, Any]:
        """Return the fields of ``abtest.Memory`` as a dict."""
        return self.usage.record()

    def table(self) -> str:
        """Return a table of the kinds, measured and predicted, and a sentence on each difference."""
        columns = [("at the peak", self.at_peak, True), ("at its own peak", self.peak_by_kind, False)]
        if self.predicted is not None:
            columns.append(("predicted", self.predicted.by_kind, True))
            columns.append(("formula", self.predicted.formula_by_kind, True))
        head = f"Memory of one step at {self.level}, {self.num_params:,} params"
        return "\n".join([head, memory_table.table(columns, self.num_params)] + self.explanations)

    __str__ = table


@hide_internal_frames
def memory_report(
    model: Union[torch.nn.Module, Sequence[torch.nn.Module]],
    optimizer: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]],
    step: Callable[[], Any],
) -> MemoryReport:
    """Measure the memory of one training step by kind, and predict it.

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
    policy = session.policy if session is not None else None
    with session.cast_backend.paused() if session is not None else nullcontext():
        predicted, sentences = _predicted(models, optimizers, policy)
    if was_skipped(optimizers):
        sentences.append("The measured step was skipped because of an overflow: no optimizer state or temporaries.")
    level = WITHOUT_AMP if policy is None else policy.opt_level
    explanations = memory_table.differences(usage, predicted) + sentences
    num_params = sum({id(param): param.numel() for each in models for param in each.parameters()}.values())
    return MemoryReport(level, num_params, usage, predicted, explanations)


def _predicted(models, optimizers, policy):
    try:
        return during_training(models, optimizers, policy), []
    except AmpError as error:
        return None, [f"No prediction: {error}"]


@hide_internal_frames
def estimate(
    model: torch.nn.Module,
    optimizer_class: Callable[[List[torch.nn.Parameter]], torch.optim.Optimizer],
    level: str = "O1",
    dtypes: Optional[opt_levels.DtypePair] = None,
    keep_fp32: Any = None,
    world_size: int = 1,
    shard: Union[str, Sequence[torch.nn.Module], None] = None,
    loss: Optional[Callable[[torch.nn.Module], torch.Tensor]] = None,
    accumulate: int = 1,
    device: str = "cuda",
    store_param_remainders: bool = False,
    **options: Any,
) -> Estimate:
    """Predict the memory of training before anything is allocated, and the bytes that ranks send.

    Args:
        model: a float32 module before ``initialize``; it may be on the meta device, where it takes no memory. It is not
            changed.
        optimizer_class: an optimizer class, or a function that creates an optimizer from a list of params:
            ``lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)``. It steps on small tensors.
        level: "O0" … "O5".
        dtypes: an ``opt_levels.DtypePair`` instead of the level's own.
        keep_fp32, store_param_remainders, **options: as in ``amp.initialize``.
        world_size: the number of ranks.
        shard: None: each rank holds the whole model, and gradients are all-reduced (DistributedDataParallel). "zero1":
            the same, but the optimizer's state is divided (``ZeroRedundancyOptimizer``). Modules that ``fully_shard``
            is called with before it is called with the model; "full": the items of the model's outermost
            ``ModuleList`` and ``Sequential`` containers, the usual blocks. "zero2": as "full", but gathered weights
            are kept from the forward to the backward pass (``reshard_after_forward=False``).
        loss: a function of the model that creates the inputs of one rank and returns the loss, a tensor of shape ().
            One step is run on torch's fake tensors, which take no memory, so that activations and temporaries are
            predicted too. Requires torch 2.5.
        accumulate: how often ``loss`` is called per optimizer step.
        device: the device to predict for with ``loss``, wherever the model is: "cuda" for a GPU; "cpu" for this CPU,
            including the float32 copies of emulated half, to compare with ``memory_report``.

    Returns:
        An ``Estimate`` of one rank; print it, or its ``table()``. Without ``loss``, it leaves out memory that a rank
        needs temporarily: the gathered weights of the model's own group and of one or two blocks.

    Raises:
        AmpError: an unknown level, an option that is invalid for the level, an optimizer that cannot be created or
            cannot step, or a torch without fake tensors.
    """
    (model,) = checked_list(model, "estimate", "model", "a torch.nn.Module", is_module)
    _check_function(optimizer_class, "an optimizer class or a function: list of params -> optimizer")
    _, policy = opt_levels.resolve(level, options, None, dtypes)
    sharding, ranks = _spread(model, checked_count("world_size must be", world_size), shard)
    if store_param_remainders:
        check_policy(policy)
    if device not in ("cpu", "cuda"):
        raise AmpValueError(f'device must be "cpu" or "cuda", not {device!r}.')
    if loss is not None:
        _check_function(loss, "loss to be a function: model -> loss")
        accumulate = checked_count("accumulate must be", accumulate)
        fake_tensors.require()
    session = process_state.current()
    layers = listed(keep_fp32)
    counted = nullcontext() if loss is None else counted_as(device)
    with session.cast_backend.paused() if session is not None else nullcontext(), counted:
        found = before_initialize(
            model, optimizer_class, policy, layers, sharding, ranks.world_size, store_param_remainders
        )
    if loss is None:
        return found
    make_step = functools.partial(loss_step, loss, accumulate)
    options = dict(options, keep_fp32=layers, store_param_remainders=store_param_remainders)
    training = Training([model], [optimizer_class], make_step, policy, options, device, ranks)
    try:
        usage, notes = measure(training)
    except UnsupportedStep as error:
        return dataclasses.replace(found, notes=[str(error)])
    return dataclasses.replace(found, usage=usage, notes=notes, counted_as=device)


def _check_function(given, expected):
    if not callable(given):
        raise AmpTypeError(f"estimate expected {expected}, not {type(given).__name__}.")


def _spread(model, world_size, shard):
    """Return (how params or state are sharded, or None; the ``Ranks``)."""
    if shard is None:
        return None, Ranks(world_size)
    if shard == "zero1":
        divided = StateSharding(model, world_size)
        return divided, Ranks(world_size, shard, divided.fullest)
    if isinstance(shard, str):
        if shard not in WAYS:
            ways = ", ".join(f'"{way}"' for way in WAYS)
            raise AmpValueError(f"shard must be {ways}, a list of modules or None, not {shard!r}.")
        return Sharding(model, world_size, "full", shard != "zero2"), Ranks(world_size, shard)
    blocks = checked_list(shard, "estimate", "shard", "a string, a list of modules or None", is_module)
    return Sharding(model, world_size, blocks), Ranks(world_size, blocks)


@hide_internal_frames
def estimate_batches(
    model: torch.nn.Module,
    optimizer_class: Callable[[List[torch.nn.Parameter]], torch.optim.Optimizer],
    loss: Callable[[torch.nn.Module, int], torch.Tensor],
    batch_sizes: Sequence[int] = (1, 8, 32),
    levels: Sequence[str] = ("O0", "O1", "O2"),
    memory: Union[int, str, None] = None,
    **options: Any,
) -> BatchTable:
    """Predict the peak memory of a training step by level and batch size, and the largest batch size that fits.

    Args:
        model, optimizer_class: as for ``estimate``.
        loss: a function of the model and a batch size that creates inputs of that size and returns the loss.
        batch_sizes, levels: of the table.
        memory: bytes, or a string such as "16GiB"; with None, the largest batch size is not searched for.
        **options: those of ``estimate``.

    Returns:
        A ``BatchTable``; print it, or read its ``peaks`` and ``largest``.

    Raises:
        AmpError: as for ``estimate``; or activations cannot be predicted.
    """
    _check_function(loss, "loss to be a function: model, batch size -> loss")
    sizes = [checked_count("batch sizes must be", size) for size in batch_sizes]
    notes = {}

    def peak_of(level, size):
        found = estimate(model, optimizer_class, level, loss=lambda model: loss(model, size), **options)
        if found.usage is None:
            raise AmpError(" ".join(found.notes))
        notes.update(dict.fromkeys(found.notes))
        return found.peak_total

    table = batch_table(peak_of, list(levels), sizes, memory)
    return dataclasses.replace(table, notes=list(notes))
