"""The contents of a checkpoint: models, optimizers, loss scales and master weights, found by structure, not by key."""

import re
from collections import Counter
from collections.abc import Mapping

import torch

from ...engine.patched_optimizers.apex_checkpoints import FLAT, INNER, MASTERS
from ...support.dtype_names import dtype_name
from ...support.nested import floating_tensors

GRAD_SCALER_KEYS = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
_LISTS = "fp32_groups"  # masters as lists, of the FP16_Optimizer in apex.optimizers

MODEL, OPTIMIZER, FP16_OPTIMIZER = "model", "optimizer", "FP16_Optimizer"
AMP, GRAD_SCALER, MASTER_PARAMS, OTHER = "amp", "GradScaler", "master params", "other"


class Contents:
    """The parts of a checkpoint.

    Attributes:
        parts: (key, kind, value) of each entry; the key is None if the file is one state dict.
    """

    def __init__(self, content):
        whole = kind_of(content)
        if whole != OTHER or not isinstance(content, Mapping) or not content:
            self.parts = [(None, whole, content)]
        else:
            self.parts = [part for key, value in content.items() for part in _parts(key, value)]

    def of(self, *kinds):
        """Return the (key, value) pairs of the given kinds."""
        return [(key, value) for key, kind, value in self.parts if kind in kinds]

    def origin(self):
        """Return what wrote the file, as far as its structure shows."""
        kinds = {kind for _, kind, _ in self.parts}
        if FP16_OPTIMIZER in kinds:
            before = any(FLAT in value or _LISTS in value for _, value in self.of(FP16_OPTIMIZER))
            return "Apex's FP16_Optimizer, " + ("of 2018" if before else "of apex.fp16_utils")
        if AMP in kinds:
            return "amp.initialize (Apex from 2019 on, or ampcompat)"
        if GRAD_SCALER in kinds:
            return "torch.amp with a GradScaler"
        if MASTER_PARAMS in kinds:
            return "NVIDIA's BERT scripts (amp without its state)"
        return "plain torch, or amp without its state" if kinds & {MODEL, OPTIMIZER} else "unknown"

    def level(self):
        """Return which opt levels the file fits, in words."""
        dtypes = Counter(value.dtype for _, model in self.of(MODEL) for value in _floating(model))
        if dtypes[torch.float16] or dtypes[torch.bfloat16]:
            low = "float16" if dtypes[torch.float16] else "bfloat16"
            with_masters = "O2" if low == "float16" else "O5"
            if self.of(FP16_OPTIMIZER, MASTER_PARAMS):
                return f"as {with_masters}: {low} weights, and float32 master weights"
            return f"O3, or a model cast by hand: {low} weights without master weights"
        if self.of(AMP):
            scales = {state["loss_scale"] for _, amp in self.of(AMP) for state in amp.values()}
            return "O0, O3, O4 or O5: the loss scale is 1" if scales == {1.0} else "O1 or O2, which save the same"
        return "none: float32 weights" if dtypes else "unknown: no model in the file"

    def lines(self):
        """Return the description, line by line."""
        rows = [("written by", self.origin()), ("opt level", self.level())]
        for key, kind, value in self.parts:
            count = 0 if kind == OTHER else sum(map(_not_finite, floating_tensors(value, [])))
            text = _describe(kind, value) + (f"; {count} are nan or inf" if count else "")
            rows.append((str(key) if key is not None else "the file", text))
        return ["{:22} : {}".format(*row) for row in rows]


def kind_of(value):
    """Return the kind of a value in a checkpoint."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, torch.Tensor) for each in value):
        return MASTER_PARAMS
    if not isinstance(value, Mapping) or not value:
        return OTHER
    if INNER in value and any(name in value for name in (MASTERS, FLAT, _LISTS)):
        return FP16_OPTIMIZER
    if "param_groups" in value and "state" in value:
        return OPTIMIZER
    if set(value) >= GRAD_SCALER_KEYS:
        return GRAD_SCALER
    if all(re.match(r"loss_scaler\d+$", str(key)) for key in value):
        return AMP
    is_model = all(isinstance(key, str) for key in value) and any(
        isinstance(each, torch.Tensor) for each in value.values()
    )
    return MODEL if is_model and all(isinstance(each, torch.Tensor) for each in value.values()) else OTHER


def _parts(key, value):
    """Return the parts of one entry; a list of optimizers or models has several."""
    kinds = [kind_of(each) for each in value] if isinstance(value, (list, tuple)) else []
    if kinds and kind_of(value) == OTHER and set(kinds) & {MODEL, OPTIMIZER, FP16_OPTIMIZER, GRAD_SCALER}:
        return [((key, index), kind, each) for index, (kind, each) in enumerate(zip(kinds, value))]
    return [(key, kind_of(value), value)]


def _floating(model):
    return [value for value in model.values() if value.is_floating_point()]


def _not_finite(tensor):
    """Return how many values of a floating-point tensor are nan or inf; 0 for a sparse one."""
    if tensor.layout is not torch.strided:
        return 0
    times = 1
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if size and not stride:  # expanded: the same values, which may be more than fit into memory
            tensor, times = tensor.narrow(dim, 0, 1), times * size
    return times * int((~torch.isfinite(tensor)).sum())


def _describe(kind, value):
    if kind == MODEL:
        dtypes = Counter(dtype_name(each.dtype) for each in value.values())
        numbers = sum(each.numel() for each in value.values())
        counts = ", ".join(f"{count} {name}" for name, count in sorted(dtypes.items()))
        return f"model: {len(value)} tensors ({counts}), {numbers} numbers"
    if kind == FP16_OPTIMIZER:
        masters = next(name for name in (MASTERS, FLAT, _LISTS) if name in value)
        return f"FP16_Optimizer: masters in {masters!r}; {_describe(OPTIMIZER, value[INNER])}"
    if kind == OPTIMIZER:
        params = sum(len(group["params"]) for group in value["param_groups"])
        groups = len(value["param_groups"])
        return "optimizer: {} params in {} group{}, state of {}".format(
            params, groups, "" if groups == 1 else "s", len(value["state"])
        )
    if kind == AMP:
        states = ("{} after {} good steps".format(each["loss_scale"], each["unskipped"]) for each in value.values())
        return "amp: loss scale " + ", ".join(states)
    if kind == GRAD_SCALER:
        return "GradScaler: loss scale {}, {} good steps".format(value["scale"], value["_growth_tracker"])
    if kind == MASTER_PARAMS:
        return f"{len(value)} tensors: master weights"
    if isinstance(value, Mapping) and not value:
        return f"{type(value).__name__}, empty"
    text = repr(value) if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__
    return text if len(text) < 60 else text[:57] + "..."
