"""What one pass has left behind, and what that says.

Owns: ``Record`` (unread numbers of one pass), ``evidence_of`` (reads one).
Must not touch: the run.
The surprise: params are in no order of their own. Their backward order is taken from the forward pass that was heard,
so that it holds where modules were defined in another order than they run in.
"""

from typing import Any, NamedTuple

import torch

from ..parts.listening import INPUT
from ..parts.magnitudes import Reading, largest, what_is_wrong
from ..parts.reasons import Evidence, Place


class Record(NamedTuple):
    """One pass that was judged: what is needed to say why its step was skipped. Unread."""

    step: int
    loss_id: int
    scale: Any  # a float, or a tensor of shape ()
    scaler: Any
    verdict: Any
    losses: Reading
    outputs: Reading  # of modules, and what functions made for modules, in the order of the forward pass
    output_dtypes: list
    arriving: Reading  # gradients at the outputs, in the order of the backward pass; in true units
    gradients: Reading  # of params, in true units
    peaks: dict  # of each kind, a function: name -> its largest magnitude before this pass


def evidence_of(record, policy, models, good_passes, skips):
    """Read a ``Record`` and return the ``Evidence`` in it; waits for the device.

    Args:
        policy: the session's.
        models: (model, what comes after the names in it) of the models that were listened to.
        good_passes: how many of this loss came before it.
        skips: whether the step was skipped.
    """
    casts = bool(policy.patch_torch_functions) or policy.casts_model
    low = policy.dtypes.low if casts else policy.dtypes.high
    outputs = record.outputs.read()
    output = _first(outputs, record.peaks["outputs"], record.output_dtypes)
    is_input = output is not None and output.name.startswith(INPUT)
    arriving, after = _first_arriving(record, low)
    gradients = _in_backward_order(record.gradients.read(), [name for name, _ in outputs])
    gradient = _first(gradients, record.peaks["gradients"], [low] * len(gradients))
    if arriving is not None and gradient is not None and _is_finite_at(record, gradient.name):
        arriving = None  # the param's own gradient overflowed, though what came to its module was finite
    return Evidence(
        step=record.step,
        loss_id=record.loss_id,
        scale=float(record.scale),
        dynamic=record.scaler.dynamic,
        skips=skips,
        skips_in_a_row=record.scaler.skips_in_a_row,
        good_passes=good_passes,
        low=_spelled(low),
        limit=torch.finfo(low).max,
        casts=casts,
        loss=_worst(record.losses),
        input=output if is_input else None,
        output=None if is_input else output,
        weights=_bad_weights(models, output),
        gradient=gradient,
        arriving=arriving,
        after=after,
        heard=any(not name.startswith(INPUT) for name, _ in outputs),
        ranks=_ranks(),
    )


def _first(readings, peak, dtypes):
    """Return the ``Place`` of the first reading that is inf or nan, or None."""
    for (name, value), dtype in zip(readings, dtypes):
        what = what_is_wrong(value)
        if what:
            return Place(name, what, _spelled(dtype), peak(name))
    return None


def _first_arriving(record, low):
    """Return the ``Place`` of the first bad gradient at an output, and the module where it was finite just before."""
    readings = record.arriving.read()
    place = _first(readings, record.peaks["arriving"], [low] * len(readings))
    after = None
    for name, value in readings if place else ():
        if what_is_wrong(value):
            break
        after = name
    return place, after


def _is_finite_at(record, param):
    """Return whether gradients were heard at the output of a param's module, and all of them were finite."""
    name, of, model = param.partition(" of ")
    module = name.rpartition(".")[0] + of + model
    values = [value for heard, value in record.arriving.read() if heard == module]
    return bool(values) and not any(map(what_is_wrong, values))


def _in_backward_order(readings, calls):
    """Sort readings of params: those of the module that was called last come first.

    Args:
        readings: (name, value) in the order of definition.
        calls: names of modules in the order in which their calls ended.
    """
    position = {name: index for index, name in enumerate(calls)}
    keyed, latest = [], -1
    for index, reading in enumerate(readings):
        name, of, model = reading[0].partition(" of ")
        # A param of a module that was not heard stays beside its neighbour.
        latest = position.get(name.rpartition(".")[0] + of + model, latest)
        keyed.append((latest, index, reading))
    return [reading for _, _, reading in sorted(keyed, key=lambda each: each[:2], reverse=True)]


def _worst(reading):
    found = [what_is_wrong(value) for _, value in reading.read()]
    return "nan" if "nan" in found else "inf" if "inf" in found else None


def _bad_weights(models, output):
    """Return what is wrong with the weights of the module of a ``Place``, as they are now."""
    if output is None:
        return ()
    found = []
    for model, label in models:
        for name, module in model.named_modules():
            if name and name + label == output.name:
                found += [(name + "." + own, largest(param)) for own, param in module.named_parameters()]
    wrong = [(name, what_is_wrong(float(value))) for name, value in found if value is not None]
    return ["{} is {}".format(name, what) for name, what in wrong if what]


def _ranks():
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _spelled(dtype):
    return str(dtype).partition(".")[2]
