"""Convert a checkpoint to the layout of ``amp.initialize`` or of ``torch.amp``.

Both have float32 weights and the optimizer's own state dict; they differ in the loss scale. So O1, O2 and Apex read the
same file: at O2, the masters start from the float32 weights. Keys of the file that are not converted are kept.
"""

from collections import OrderedDict
from collections.abc import Mapping

import torch

from ...engine.patched_optimizers.apex_checkpoints import FLAT, INNER, MASTERS
from ...errors import AmpError
from . import contents as kinds

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
    found = kinds.Contents(content)
    if not found.of(kinds.MODEL, kinds.OPTIMIZER, kinds.FP16_OPTIMIZER):
        raise AmpError("the file has no state dict of a model or an optimizer: nothing to convert.")
    if found.parts[0][0] is None:
        return _part(found.parts[0][1], content)
    result = dict(content)
    models = [value for _, value in found.of(kinds.MODEL)]
    masters = _masters(found)
    for key, kind, value in found.parts:
        new = _with_masters(value, masters, len(models)) if kind == kinds.MODEL else _part(kind, value)
        if isinstance(key, tuple):  # one of a list
            result[key[0]] = list(result[key[0]])
            result[key[0]][key[1]] = new
        else:
            result[key] = new
    for key, _ in found.of(kinds.AMP, kinds.GRAD_SCALER, kinds.MASTER_PARAMS):
        result.pop(key, None)
    result.update(_scale_entries(_scales(found), layout))
    return result


def _part(kind, value):
    if kind == kinds.MODEL:
        return _widened(value)
    if kind == kinds.FP16_OPTIMIZER:
        return _optimizer(value[INNER])
    return _optimizer(value) if kind == kinds.OPTIMIZER else value


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
    masters = [value for _, values in found.of(kinds.MASTER_PARAMS) for value in values]
    for _, value in found.of(kinds.FP16_OPTIMIZER):
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
    scales = [(state["loss_scale"], state["unskipped"]) for _, amp in found.of(kinds.AMP) for state in amp.values()]
    scales += [(value["scale"], value["_growth_tracker"]) for _, value in found.of(kinds.GRAD_SCALER)]
    for _, value in found.of(kinds.FP16_OPTIMIZER):
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
