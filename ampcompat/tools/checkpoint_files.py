"""``ampcompat checkpoint``: the contents of a checkpoint file, and its conversion to another layout.

Models, optimizers, loss scales and master weights are found by structure, not by key. The layouts of ``amp.initialize``
and of ``torch.amp`` have float32 weights and the optimizer's own state dict; they differ in the loss scale. So O1, O2
and Apex read the same file: at O2, the masters start from the float32 weights. Keys of the file that are not converted
are kept. Files are read with ``weights_only=True``, so that they cannot run code.
"""

import contextlib
import functools
import inspect
import os
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Mapping

import torch

from ..engine.optimizers.apex_checkpoints import FLAT, INNER, MASTERS
from ..errors import AmpError
from ..support import files
from ..support.containers import floating_tensors
from ..support.torch_compat.torch_names import dtype_name

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


#: The choices of ``--to``.
LAYOUTS = ("O1", "O2", "apex", "torch")
_LOW = (torch.float16, torch.bfloat16)


def convert(content, layout):
    """Return a checkpoint in another layout; ``content`` is not changed.

    Args:
        content: the result of ``read``.
        layout: one of ``LAYOUTS``.

    Raises:
        AmpError: the file has nothing to convert, or masters that do not belong to its model.
    """
    found = Contents(content)
    if not found.of(MODEL, OPTIMIZER, FP16_OPTIMIZER):
        raise AmpError("the file has no state dict of a model or an optimizer: nothing to convert.")
    if found.parts[0][0] is None:
        return _part(found.parts[0][1], content)
    result = dict(content)
    models = [value for _, value in found.of(MODEL)]
    masters = _masters(found)
    for key, kind, value in found.parts:
        new = _with_masters(value, masters, len(models)) if kind == MODEL else _part(kind, value)
        if isinstance(key, tuple):  # one of a list
            result[key[0]] = list(result[key[0]])
            result[key[0]][key[1]] = new
        else:
            result[key] = new
    for key, _ in found.of(AMP, GRAD_SCALER, MASTER_PARAMS):
        result.pop(key, None)
    result.update(_scale_entries(_scales(found), layout))
    return result


def _part(kind, value):
    if kind == MODEL:
        return _widened(value)
    if kind == FP16_OPTIMIZER:
        return _optimizer(value[INNER])
    return _optimizer(value) if kind == OPTIMIZER else value


def _widened(model):
    """Return a model's state dict with half tensors cast to float32."""
    return OrderedDict((name, value.float() if value.dtype in _LOW else value) for name, value in model.items())


def _optimizer(state_dict):
    """Return an optimizer's state dict with float32 state."""
    state = {key: _widened_state(values) for key, values in state_dict["state"].items()}
    return dict(state_dict, state=state)


def _widened_state(values):
    if not isinstance(values, Mapping):
        return values
    is_low = {name: isinstance(each, torch.Tensor) and each.dtype in _LOW for name, each in values.items()}
    return {name: each.float() if is_low[name] else each for name, each in values.items()}


def _masters(found):
    """Return the master weights in the file, in order.

    Raises:
        AmpError: they are in the layout of 2018, one vector per param group.
    """
    masters = [value for _, values in found.of(MASTER_PARAMS) for value in values]
    for _, value in found.of(FP16_OPTIMIZER):
        if FLAT in value:
            raise AmpError(
                f"the file has {FLAT!r}: an FP16_Optimizer of 2018 saved each param group as one vector. Load it with "
                "apex.optimizers.FP16_Optimizer under `ampcompat run`, and save from there."
            )
        masters += [each for group in value.get(MASTERS, value.get("fp32_groups", ())) for each in group]
    return [master.detach().float() for master in masters]


def _with_masters(model, masters, models):
    """Return a model's state dict with the values of its masters in place of the half weights.

    A master belongs to the first entry of its shape that has its values rounded to half.
    """
    result, waiting = _widened(model), list(masters)
    for name, value in model.items():
        if value.is_floating_point():
            index = next((at for at, master in enumerate(waiting) if _rounds_to(master, value)), None)
            if index is not None:
                result[name] = waiting.pop(index).clone()
    if waiting and models == 1:
        raise AmpError(
            f"{len(waiting)} of {len(masters)} master weights do not round to any weight of the model, so they do not "
            "belong to it. Convert a file in which both were saved at the same step."
        )
    return result


def _rounds_to(master, value):
    if master.shape != value.shape:
        return False
    if torch.equal(master, value.float()):
        return True
    return any(torch.equal(master.to(low).float(), value.float()) for low in _LOW)


def _scales(found):
    """Return (loss scale, good steps) of each loss scaler in the file."""
    scales = [(state["loss_scale"], state["unskipped"]) for _, amp in found.of(AMP) for state in amp.values()]
    scales += [(value["scale"], value["_growth_tracker"]) for _, value in found.of(GRAD_SCALER)]
    for _, value in found.of(FP16_OPTIMIZER):
        saved = value.get("loss_scaler", value)
        saved = saved if isinstance(saved, Mapping) else vars(saved) if saved is not None else {}
        scale = saved.get("loss_scale", saved.get("_loss_scale", saved.get("cur_scale")))
        good = saved.get("cur_iter", 0) - saved.get("last_overflow_iter", -1) - 1
        if scale is not None:
            scales.append((scale, saved.get("unskipped", saved.get("_unskipped", good))))
    return [(float(scale), int(good)) for scale, good in scales]


def _scale_entries(scales, layout):
    """Return the entry of the loss scale: ``amp``, or for torch ``scaler``, ``scaler1``, …, one per loss scaler."""
    if layout != "torch":
        states = [{"loss_scale": scale, "unskipped": good} for scale, good in scales]
        return {"amp": {f"loss_scaler{at}": state for at, state in enumerate(states)}} if states else {}
    entries = {}
    for at, (scale, good) in enumerate(scales):
        numbers = (scale, 2.0, 0.5, 2000, good % 2000)  # the factors and the interval of Apex's dynamic scale
        names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        entries["scaler" + (str(at) if at else "")] = dict(zip(names, numbers))
    return entries


#: Classes of Apex, as (module, name), whose instances FP16_Optimizer saved. They are read as ``SavedObject``.
_SCALERS = [
    ("apex.fp16_utils.loss_scaler", "LossScaler"),
    ("apex.fp16_utils.loss_scaler", "DynamicLossScaler"),
    ("apex.amp.scaler", "LossScaler"),
]


class SavedObject:
    """Replaces an object of Apex in a file: it has only the attributes."""


def read(path):
    """Return the content of a checkpoint file, tensors on the CPU.

    Raises:
        AmpError: the file cannot be read, is damaged, or has objects that ``weights_only=True`` does not allow.
    """
    if "weights_only" not in inspect.signature(torch.load).parameters:
        raise AmpError("this needs torch.load(weights_only=True), which was added in torch 1.13; upgrade torch.")
    with files.opened(path) as file, _known_classes():
        try:
            _check_sizes(path, file)
            return torch.load(file, map_location="cpu", weights_only=True)
        except AmpError:
            raise
        except Exception as error:  # torch.load documents no exceptions: they depend on where the file ends
            raise AmpError(_why(path, error)) from None


def _check_sizes(path, file):
    """Raise an error for a zip file whose entries would be larger than the file: torch.save compresses nothing."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(each.file_size for each in archive.infolist())
        if unpacked > os.fstat(file.fileno()).st_size:
            raise AmpError(f"cannot read {path}: it unpacks to {unpacked} bytes; torch.save does not compress.")
    file.seek(0)


def write(content, path):
    """Write a checkpoint file atomically: an interrupted call leaves no partial file.

    Raises:
        AmpError: the file cannot be written.
    """
    try:
        files.write(path, functools.partial(torch.save, content))
    except AmpError:
        raise
    except RuntimeError as error:  # torch.save on a full disk
        raise AmpError("cannot write {}: {}.".format(path, str(error).splitlines()[0].rstrip("."))) from None


def _known_classes():
    """Return a context in which Apex's scalers are allowed, if this torch supports replacement classes for them."""
    if not hasattr(torch.serialization, "safe_globals"):
        return contextlib.nullcontext()
    # Classes with these names: torch 2.5 accepts only classes, without separate names.
    known = [type(name, (SavedObject,), {"__module__": module}) for module, name in _SCALERS]
    return torch.serialization.safe_globals(known)


def _why(path, error):
    """Return one sentence about an error of ``torch.load``."""
    found = re.search(r"(?:GLOBAL|global|class) `?'?([\w.]+)'?`? (?:was not an allowed|is not)", str(error))
    found = found or re.search(r"Unsupported (?:class|global)[: ]+(?:GLOBAL )?([\w.]+)", str(error))
    if found:
        return (
            f"{path} has an object of {found.group(1)}, which torch.load(weights_only=True) does not read. Load it "
            "where that class is installed, and save its state_dict()."
        )
    first = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    detail = f": {first}" if first and not isinstance(error, pickle.UnpicklingError) else ""
    return f"{path} is damaged, or was not written by torch.save{detail}."
