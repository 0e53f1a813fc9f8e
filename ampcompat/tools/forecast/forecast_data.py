"""The forecast as JSON: what ``--json`` writes, and what the terminal and the page show besides."""

from .prediction import predict


def make(observed):
    """Return the forecast of an ``Observed`` as a dict: ``levels``, which ``--json`` writes, and ``details``."""
    predictions = predict(observed)
    return {
        "levels": {each.level: _level(each) for each in predictions},
        "details": {
            "steps": len(observed.losses),
            "reasons": {each.level: each.reason for each in predictions},
            "skips": {each.level: each.skips for each in predictions},
            "problems": observed.problems,
        },
    }


def _level(prediction):
    return {
        "prediction": prediction.kind,
        "keep_fp32": list(prediction.kept),
        "safe_loss_scale": prediction.safe_scale,
        "findings": [
            {"module": fault.place.module, "op": fault.op, "kind": fault.kind, "margin": round(fault.margin, 1)}
            for fault in prediction.faults
        ],
    }
