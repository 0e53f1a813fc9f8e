"""The formula: the bytes that training will hold, before it holds them.

Owns: ``Footprint``, predicted bytes by kind; ``planned``, of a model before ``initialize``; ``existing``, of one in
training.
Must not touch: the model, whose params may have no memory at all (torch's meta device).
The surprise: what this package holds beyond the formula stands beside it with its reason, so that 16 bytes remain 16.

For Adam in mixed precision the formula is that of Rajbhandari et al. 2020 ("ZeRO", section 3.1): half params 2 and
gradients 2, float32 masters 4, moments 4 and 4, together 16 bytes per param.
"""

from dataclasses import dataclass, field
from typing import Any, List, NamedTuple, Optional, Tuple

import torch

from . import half_math, models as model_parts
from .memory_kinds import Kinds
from .optimizers import SLOT
from .state_sizes import StateSizes, maker_of
from .storages import element_size

#: Functions look up in their weights, or normalize by them: no weight of theirs is cast at O1.
_UNCAST = (torch.nn.Embedding, torch.nn.EmbeddingBag, torch.nn.LayerNorm)


@dataclass
class Footprint:
    """Predicted bytes by kind.

    Attributes:
        kinds: the formula's; activations and temporaries are None, since they depend on the batch.
        additions: (kind, bytes, why) of what is held at the level beyond the formula.
        elements: of the params.
    """

    kinds: Kinds
    additions: List[Tuple[str, int, str]] = field(default_factory=list)
    elements: int = 0

    @property
    def formula(self):
        """The formula's bytes: 16 per param for Adam at O2."""
        return self.kinds.total

    @property
    def total(self):
        """The formula's bytes and the additions."""
        return self.full.total

    @property
    def full(self):
        """The ``Kinds`` with the additions in them."""
        kinds = self.kinds
        for kind, size, _ in self.additions:
            kinds = kinds.plus(kind, size)
        return kinds

    def record(self):
        """Return the fields of ``abtest.Memory`` as a dict."""
        full = self.full
        names = ("parameters", "gradients", "masters", "optimizer", "buffers")
        return dict({name: getattr(full, name) for name in names}, peak_total=full.total)


class _Row(NamedTuple):
    """One param: what it is stored as, what its master is stored as, and who says what state takes."""

    shape: Tuple[int, ...]
    dtype: torch.dtype
    is_trained: bool
    master: Optional[torch.dtype]
    state: Any
    cast_size: int  # bytes per element of the cast that O1 and O4 keep

    @property
    def elements(self):
        """How many elements it has."""
        return torch.Size(self.shape).numel()


def planned(model, make, policy, keep_fp32=()):
    """Return the ``Footprint`` of a float32 model that ``initialize`` will prepare by ``policy``.

    Args:
        make: a function: list of params -> optimizer.
        keep_fp32: as in ``initialize``.
    """
    dtypes = _planned_dtypes(model, policy, list(keep_fp32))
    casts = _cast_sizes(model, policy)
    devices = {param.device for param in model.parameters() if param.device.type != "meta"}
    state = StateSizes(make, sorted(devices, key=str)[0] if devices else "cpu")
    high = policy.dtypes.high
    rows = []
    for param in model.parameters():
        dtype = dtypes[id(param)]
        has_master = policy.master_weights and dtype.is_floating_point and element_size(dtype) < element_size(high)
        master = high if has_master else None
        rows.append(_Row(tuple(param.shape), dtype, param.requires_grad, master, state, casts.get(id(param), 0)))
    buffers = sum(buffer.numel() * element_size(dtypes[id(buffer)]) for buffer in _once(model.buffers()))
    return _footprint(rows, buffers)


def existing(models, optimizers, policy=None):
    """Return the ``Footprint`` of models and optimizers as they are: after ``initialize`` by ``policy``, or plain."""
    casts, grouped, rows = {}, {}, []
    for model in models:
        casts.update(_cast_sizes(model, policy) if policy is not None else {})
    for optimizer in optimizers:
        adapter = getattr(optimizer, SLOT, None)
        model_of = {id(pair.master): pair.model for pair in (adapter.pairs() if adapter is not None else ())}
        for group in optimizer.param_groups:
            params = group["params"]
            state = StateSizes(maker_of(optimizer, group), params[0].device) if params else None
            for param in params:
                weight = model_of.get(id(param), param)
                grouped[id(weight)] = (weight, param.dtype if weight is not param else None, state)
    params = _once([param for model in models for param in model.parameters()] + [row[0] for row in grouped.values()])
    for param in params:
        _, master, state = grouped.get(id(param), (None, None, None))
        is_trained = param.requires_grad and state is not None
        rows.append(_Row(tuple(param.shape), param.dtype, is_trained, master, state, casts.get(id(param), 0)))
    buffers = _once(buffer for model in models for buffer in model.buffers())
    return _footprint(rows, sum(buffer.numel() * buffer.element_size() for buffer in buffers))


def _footprint(rows, buffers):
    trained = [row for row in rows if row.is_trained]
    with_masters = [row for row in rows if row.master is not None]
    kinds = Kinds(
        parameters=sum(row.elements * element_size(row.dtype) for row in rows),
        gradients=sum(row.elements * element_size(row.dtype) for row in trained),
        masters=sum(row.elements * element_size(row.master) for row in with_masters),
        optimizer=sum(row.state.of(row.shape, row.master or row.dtype) for row in trained),
        model_buffers=buffers,
    )
    wider = sum(row.elements * (element_size(row.master) - element_size(row.dtype)) for row in trained if row.master)
    casts = sum(row.elements * row.cast_size for row in rows)
    additions = [("gradients", wider, "gradients of masters are as wide as masters, since any optimizer may read them")]
    additions.append(("casts", casts, "a cast of each weight that products use is kept until scale_loss exits"))
    return Footprint(kinds, [each for each in additions if each[1]], sum(row.elements for row in rows))


def _planned_dtypes(model, policy, keep_fp32):
    """Return ``{id(param or buffer): dtype}`` after ``initialize``; the rules are those of ``models.ModelCast``."""
    wanted, high = policy.weights_dtype, policy.dtypes.high
    kept = [child for module in model_parts.matching(model, keep_fp32) for child in module.modules()]
    kept += model_parts.batch_norms(model) if policy.keep_batchnorm_fp32 else []
    protected = {id(tensor) for module in kept for tensor in _own_tensors(module)}
    dtypes = {}
    for tensor in [tensor for module in model.modules() for tensor in _own_tensors(module)]:
        dtypes[id(tensor)] = tensor.dtype
        if wanted is not None and tensor.is_floating_point():
            if id(tensor) not in protected:
                dtypes[id(tensor)] = wanted
            elif tensor.element_size() < element_size(high):
                dtypes[id(tensor)] = high
    return dtypes


def _cast_sizes(model, policy):
    """Return ``{id(param): bytes per element of its cast}`` at levels that cast by function."""
    if not policy.patch_torch_functions:
        return {}
    low, high = policy.dtypes
    sizes = {}
    for module in model.modules():
        own = [param for param in module.parameters(recurse=False) if param.is_floating_point()]
        if isinstance(module, _UNCAST) or not any(param.dim() > 1 for param in own):
            continue
        for param in own:
            # Without half units the rounded weight is kept in the dtype that is computed in.
            is_wide = param.device.type == "cpu" and half_math.is_wanted(low)
            sizes[id(param)] = element_size(high if is_wide else low)
    return sizes


def _own_tensors(module):
    return list(module.parameters(recurse=False)) + list(module.buffers(recurse=False))


def _once(tensors):
    return list({id(tensor): tensor for tensor in tensors}.values())
