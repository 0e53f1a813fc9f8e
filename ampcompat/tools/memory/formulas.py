"""Predict the memory of training, for a model before ``initialize`` or for models in training.

For Adam in mixed precision, the formula is that of Rajbhandari et al. 2020 ("ZeRO", section 3.1): half params 2 and
gradients 2, float32 masters 4, moments 4 and 4, together 16 bytes per param. Memory of ampcompat beyond the formula is
listed separately, with the reason.
"""

from dataclasses import dataclass, field
from typing import Any, List, NamedTuple, Optional, Tuple

import torch

from ...engine.casting import emulated_half_arithmetic
from ...engine.models import cast_weights as kept_layers
from ...engine.optimizers.optimizer_record import record_of
from ...engine.optimizers.stored_chunk import chunks_of_sizes
from ...support.tensor_lists import is_shard
from . import memory_table
from .bytes_by_kind import KINDS, BytesByKind, MemoryUsage, format_bytes
from .optimizer_state import StateSizes, same_optimizer_factory
from .storages import element_size

#: Modules whose functions are not cast to half at O1: lookups and normalization.
_FLOAT32_AT_O1 = (torch.nn.Embedding, torch.nn.EmbeddingBag, torch.nn.LayerNorm)


#: The bytes of a master that is stored as a remainder; its float32 value takes 4.
REMAINDER = 2

#: The value of ``Estimate.level`` without ``amp.initialize``.
WITHOUT_AMP = "float32 without amp"


@dataclass
class Estimate:
    """Predicted memory of training.

    Each kind of ``BytesByKind`` is also an attribute: ``parameters``, ``gradients``, …, in bytes.

    Attributes:
        level: the opt level, or ``WITHOUT_AMP``.
        num_params: the number of elements of the params.
        formula_by_kind: a ``BytesByKind`` by the formula.
        additions: (kind, bytes, reason) of memory beyond the formula.
        usage: the ``MemoryUsage`` of a step on fake tensors; if None, activations and temporaries, which depend on the
            batch, are not predicted.
        by_kind: with ``usage``, the peak of each kind; otherwise the sum of formula and additions.
        formula, total: the sums of ``formula_by_kind`` and ``by_kind``; for Adam at O2 the first is 16 bytes per param.
        at_peak: the bytes per kind at the moment when their sum is largest; ``by_kind`` without ``usage``.
        peak_total: the sum of ``at_peak``. It is less than ``total``, since the kinds peak at different moments.
        world_size: the number of ranks; everything above is for one rank.
        sent: the bytes that a rank sends per step.
        counted_as: the device whose memory is predicted: "cpu" or "cuda".
        notes: sentences on what was assumed, or could not be predicted.
    """

    level: str
    num_params: int
    formula_by_kind: BytesByKind
    additions: List[Tuple[str, int, str]] = field(default_factory=list)
    world_size: int = 1
    sent: int = 0
    usage: Optional[MemoryUsage] = None
    counted_as: str = "cpu"
    notes: List[str] = field(default_factory=list)

    def __post_init__(self):
        self.by_kind = self.formula_by_kind
        for kind, size, _ in self.additions:
            self.by_kind = self.by_kind.plus(kind, size)
        self.at_peak = self.by_kind
        if self.usage is not None:
            self.by_kind, self.at_peak = self.usage.peak_by_kind, self.usage.at_peak
        self.formula, self.total = self.formula_by_kind.total, self.by_kind.total
        self.peak_total = self.at_peak.total

    def __getattr__(self, name):
        if name in KINDS + ("buffers", "offloaded"):
            return getattr(self.by_kind, name)
        raise AttributeError(f"Estimate has no attribute {name!r}")

    @property
    def explanations(self):
        """Sentences on the difference between ``formula`` and ``total``, and on assumptions."""
        more = [f"{format_bytes(size)} more for {kind}: {why}." for kind, size, why in self.additions]
        return more + self.notes

    def record(self):
        """Return the fields of ``abtest.Memory`` as a dict."""
        names = ("parameters", "gradients", "masters", "optimizer", "buffers")
        found = dict({name: getattr(self.at_peak, name) for name in names}, peak_total=self.peak_total)
        return found if self.usage is None else dict(found, activations=self.at_peak.activations)

    def table(self):
        """Return a table of the kinds, and a sentence on each difference from the formula."""
        columns = [("formula", self.formula_by_kind, True)]
        if self.usage is None:
            columns.append(("predicted", self.by_kind, True))
        else:
            columns += [("at the peak", self.at_peak, True), ("at its own peak", self.by_kind, False)]
        place = {"cpu": "on this CPU", "cuda": "on a GPU"}[self.counted_as]
        title = "Predicted at {} for {:,} params, {}".format(
            self.level, self.num_params, "before activations" if self.usage is None else place
        )
        lines = [memory_table.table(columns, self.num_params)] + self.explanations
        if self.world_size > 1:
            title += f", on each of {self.world_size:,} ranks"
            lines.append(f"Each rank sends {format_bytes(self.sent)} per step.")
        return "\n".join([title] + lines)

    __str__ = table


class _ParamPlan(NamedTuple):
    """How a param will be stored."""

    shape: Tuple[int, ...]
    dtype: torch.dtype
    is_trained: bool
    master: Optional[torch.dtype]  # None without a master
    state: Any  # the StateSizes of its optimizer
    copy_bytes: int  # of the half copy that O1 and O4 cache
    has_state: bool = True  # on this rank
    is_stored: bool = False  # its master, as a remainder between steps

    @property
    def numel(self):
        """The number of elements."""
        return torch.Size(self.shape).numel()


def before_initialize(
    model, make_optimizer, policy, keep_fp32=(), sharding=None, world_size=1, store_param_remainders=False
):
    """Return the ``Estimate`` of a float32 model after an ``initialize`` with ``policy``.

    Args:
        make_optimizer: a function: list of params -> optimizer.
        keep_fp32: as in ``initialize``.
        sharding: the ``Sharding`` of a model that goes through ``fully_shard``: its shards stay float32; or the
            ``StateSharding`` of one whose optimizer is a ``ZeroRedundancyOptimizer``.
        world_size: the number of ranks. Without ``Sharding`` they all-reduce gradients.
        store_param_remainders: as in ``initialize``.
    """
    dtypes = _planned_dtypes(model, policy, list(keep_fp32))
    casts = _copy_sizes(model, policy)
    devices = {param.device for param in model.parameters() if param.device.type != "meta"}
    state = StateSizes(make_optimizer, sorted(devices, key=str)[0] if devices else "cpu")
    high = policy.dtypes.high
    plans, sent = [], 0
    for param in model.parameters():
        dtype, shape = dtypes[id(param)], tuple(param.shape)
        has_master = policy.master_weights and dtype.is_floating_point and element_size(dtype) < element_size(high)
        master = high if has_master else None
        has_state = sharding is None or sharding.has_state(param)
        if sharding is not None and sharding.splits_params:
            sent += sharding.bytes_sent(param, element_size(dtype), element_size(high))
            shape, dtype, master = sharding.local_shape(shape), param.dtype, None
        elif param.requires_grad:
            sent += 2 * (world_size - 1) * param.numel() * element_size(dtype) // world_size
            if sharding is not None:
                sent += sharding.bytes_sent(param, element_size(master or dtype))
        is_stored = store_param_remainders and master is not None
        half_copy = casts.get(id(param), 0)
        plans.append(_ParamPlan(shape, dtype, param.requires_grad, master, state, half_copy, has_state, is_stored))
    buffers = sum(buffer.numel() * element_size(dtypes[id(buffer)]) for buffer in _unique(model.buffers()))
    num_params = sum(param.numel() for param in model.parameters())
    return _estimate(policy.opt_level, plans, buffers, num_params, world_size, sent)


def during_training(models, optimizers, policy=None):
    """Return the ``Estimate`` of existing models and optimizers.

    Args:
        policy: the one that they were initialized with; None if they were not.
    """
    casts, grouped, plans = {}, {}, []
    for model in models:
        casts.update(_copy_sizes(model, policy) if policy is not None else {})
    for optimizer in optimizers:
        record = record_of(optimizer)
        model_of = {id(pair.master): pair.model for pair in (record.pairs() if record is not None else ())}
        for group in optimizer.param_groups:
            params = group["params"]
            state = StateSizes(same_optimizer_factory(optimizer, group), params[0].device) if params else None
            for param in params:
                weight = model_of.get(id(param), param)
                is_stored = weight is not param and record.masters.are_stored
                grouped[id(weight)] = (weight, param.dtype if weight is not param else None, state, is_stored)
    params = [param for model in models for param in model.parameters()] + [entry[0] for entry in grouped.values()]
    params = _unique(params)
    for param in params:
        _, master, state, is_stored = grouped.get(id(param), (None, None, None, False))
        is_trained = param.requires_grad and state is not None
        shape = tuple((param.to_local() if is_shard(param) else param).shape)
        half_copy = casts.get(id(param), 0)
        plans.append(_ParamPlan(shape, param.dtype, is_trained, master, state, half_copy, is_stored=is_stored))
    buffers = _unique(buffer for model in models for buffer in model.buffers())
    level = WITHOUT_AMP if policy is None else policy.opt_level
    num_params = sum(param.numel() for param in params)
    return _estimate(level, plans, sum(buffer.numel() * buffer.element_size() for buffer in buffers), num_params)


def _estimate(level, plans, buffers, num_params, world_size=1, sent=0):
    trained = [plan for plan in plans if plan.is_trained]
    with_masters = [plan for plan in plans if plan.master is not None]
    kinds = BytesByKind(
        parameters=sum(plan.numel * element_size(plan.dtype) for plan in plans),
        gradients=sum(plan.numel * element_size(plan.dtype) for plan in trained),
        masters=sum(plan.numel * (REMAINDER if plan.is_stored else element_size(plan.master)) for plan in with_masters),
        optimizer=sum(plan.state.bytes_of(plan.shape, plan.master or plan.dtype) for plan in trained if plan.has_state),
        model_buffers=buffers,
    )
    widened = [plan for plan in trained if plan.master and not plan.is_stored]
    wider = sum(plan.numel * (element_size(plan.master) - element_size(plan.dtype)) for plan in widened)
    stored = [plan.numel for plan in with_masters if plan.is_stored]
    chunk = max((sum(stored[index] for index in indices) for indices in chunks_of_sizes(stored)), default=0)
    casts = sum(plan.copy_bytes for plan in plans)
    additions = [
        ("gradients", wider, "gradients of masters have the dtype of the masters, since optimizers may read them"),
        ("masters", chunk * (4 - REMAINDER), "in a step, the masters of one chunk at a time have float32 values"),
        ("gradients", chunk * (4 - REMAINDER), "and float32 gradients"),
        ("casts", casts, "the half copy of each weight of a matrix product is cached until scale_loss exits"),
    ]
    return Estimate(level, num_params, kinds, [each for each in additions if each[1]], world_size, sent)


def _planned_dtypes(model, policy, keep_fp32):
    """Return ``{id(param or buffer): dtype}`` after ``initialize``, by the rules of ``cast_weights.ModelCast``."""
    target, high = policy.weights_dtype, policy.dtypes.high
    kept = [child for module in kept_layers.matching(model, keep_fp32) for child in module.modules()]
    kept += kept_layers.batch_norms(model) if policy.keep_batchnorm_fp32 else []
    protected = {id(tensor) for module in kept for tensor in _own_tensors(module)}
    dtypes = {}
    for tensor in [tensor for module in model.modules() for tensor in _own_tensors(module)]:
        dtypes[id(tensor)] = tensor.dtype
        if target is not None and tensor.is_floating_point():
            if id(tensor) not in protected:
                dtypes[id(tensor)] = target
            elif tensor.element_size() < element_size(high):
                dtypes[id(tensor)] = high
    return dtypes


def _copy_sizes(model, policy):
    """Return ``{id(param): bytes of its cast}`` at levels that cast by function."""
    if not policy.patch_torch_functions:
        return {}
    low, high = policy.dtypes
    sizes = {}
    for module in model.modules():
        own = [param for param in module.parameters(recurse=False) if param.is_floating_point()]
        if isinstance(module, _FLOAT32_AT_O1) or not any(param.dim() > 1 for param in own):
            continue
        for param in own:
            # Emulated half: the rounded weight is cached in the wide dtype of the computation.
            is_wide = param.device.type == "cpu" and emulated_half_arithmetic.is_wanted(low)
            sizes[id(param)] = param.numel() * element_size(high if is_wide else low)
    return sizes


def _own_tensors(module):
    return list(module.parameters(recurse=False)) + list(module.buffers(recurse=False))


def _unique(tensors):
    return list({id(tensor): tensor for tensor in tensors}.values())
