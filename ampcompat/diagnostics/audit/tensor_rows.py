"""The tensors of a run with their dtypes: a row for each, and the totals of all."""

from typing import Dict, NamedTuple, Optional

import torch

from ...support.torch_compat.torch_names import dtype_name
from .weight_updates import HALF


class TensorRow(NamedTuple):
    """A weight, the float32 master of a half one, a buffer, or an average of a weight, which has the weight's name.

    ``gradient`` and ``state``: the dtypes of its gradient, and of the tensors in its optimizer's state; ``unmoved`` and
    ``lost``: the number of elements that did not move, and the share of updates that were lost, where it is known.
    """

    kind: str
    name: str
    dtype: str
    numel: int
    gradient: Optional[str] = None
    state: Optional[Dict[str, str]] = None
    unmoved: Optional[int] = None
    lost: Optional[float] = None


def of_params(kind, named, gradients, states, updates):
    """Yield the rows of params.

    Args:
        named: ``{param: name}``.
        gradients: ``{param: dtype}``, of those that had one.
        states: ``{param: {name: value}}``, as optimizers have it.
        updates: ``{param: ParamUpdates}``, of those that were compared.
    """
    for param, name in named.items():
        gradient, found = gradients.get(param), updates.get(param)
        values = {name: value for name, value in states.get(param, {}).items() if isinstance(value, torch.Tensor)}
        yield TensorRow(
            kind,
            name or "?",
            dtype_name(param.dtype),
            param.numel(),
            gradient and dtype_name(gradient),
            {name: dtype_name(value.dtype) for name, value in values.items() if name != "step"},
            found and found.unmoved,
            found and found.lost,
        )


def totals(rows):
    """Return the totals: ``{dtype: elements}``, for averages and gradients dtypes, for states ``{name: dtypes}``."""
    found = {"weights": {}, "masters": {}, "buffers": {}, "averages": {}}
    state = {}
    for row in rows:
        elements = found[row.kind + "s"]
        elements[row.dtype] = elements.get(row.dtype, 0) + row.numel
        for name, dtype in (row.state or {}).items():
            state.setdefault(name, set()).add(dtype)
    return {
        **found,
        "averages": sorted(found["averages"]),
        "gradients": sorted({row.gradient for row in rows} - {None}),
        "optimizer state": {name: sorted(dtypes) for name, dtypes in state.items()},
    }


def any_half(rows):
    """Return whether a tensor, its gradient or a part of its state is half."""
    dtypes = {dtype for row in rows for dtype in (row.dtype, row.gradient, *(row.state or {}).values())}
    return bool(dtypes & set(map(dtype_name, HALF)))
