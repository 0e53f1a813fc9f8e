"""The forecast as JSON: the output of ``--json``, and further data for the terminal."""

import math

import torch

from ...errors import AmpError
from ...support.torch_compat.torch_names import dtype_name
from .prediction import predict

NO_STEP = "No training step was recorded: a forecast needs a backward pass and a step of a torch.optim optimizer."

NOT_FINITE = "The loss is {} in float32 already: no level can do better. Lower the learning rate, or check the data."


def make(observed):
    """Return the forecast of an ``Observed`` as a dict: ``levels``, which ``--json`` writes, and ``details``.

    ``details``: ``steps``, the ``losses`` at the start and the end, ``has_amp`` (the script calls ``amp.initialize``),
    ``problems`` (optimizers that did not step in half, and why), ``half_dtypes`` (of the script's own weights),
    ``uncompiled`` (what the script compiles), and for each level the ``dtype``, ``error`` (why it would raise an error,
    or ""), ``zero_eps`` (of an optimizer whose eps is 0: its class and eps, or None), ``skips`` (steps that a dynamic
    loss scale skips), ``scale`` (a static one, or None), and the ``margins`` of its modules: op, largest value, largest
    scaled gradient, share of gradients that become 0, margin.

    Raises:
        AmpError: no step was recorded, or the loss is not finite in float32.
    """
    if not observed.steps or not observed.losses:
        raise AmpError(NO_STEP)
    if not math.isfinite(observed.losses[-1]):
        raise AmpError(NOT_FINITE.format(observed.losses[-1]))
    predictions = predict(observed)
    return {
        "levels": {each.level.name: _level(each) for each in predictions},
        "details": {
            "steps": len(observed.losses),
            "losses": [observed.losses[0], observed.losses[-1]],
            "problems": observed.problems,
            "half_dtypes": observed.half_dtypes,
            "uncompiled": observed.uncompiled,
            "has_amp": bool(observed.stated),
            "levels": {each.level.name: _details(each) for each in predictions},
        },
    }


def _level(prediction):
    return {
        "prediction": prediction.kind,
        "keep_fp32": list(prediction.kept),
        "safe_loss_scale": prediction.final.safe_scale,
        "findings": [
            {"module": fault.place.name, "op": fault.op, "kind": fault.kind, "margin": round(fault.margin, 1)}
            for fault in prediction.outcome.faults
        ],
    }


def _details(prediction):
    level = prediction.level
    dtype = None if level.low is None else dtype_name(level.low)
    return {
        "dtype": dtype,
        "error": prediction.outcome.error,
        "zero_eps": prediction.zero_eps,
        "skips": prediction.final.skips,
        "scale": level.scale,
        "margins": [
            dict(found._asdict(), module=module, margin=_margin(found, level))
            for module, found in prediction.outcome.margins.items()
        ],
    }


def _margin(found, level):
    """Return how many powers of two the largest number is beyond the range of the dtype; negative if it is not.

    Gradients count only with a static loss scale, since a dynamic one adapts to them.
    """
    largest = found.largest if level.scale is None else max(found.largest, found.gradient)
    return round(math.log2(largest / torch.finfo(level.low).max), 1) if largest else None
