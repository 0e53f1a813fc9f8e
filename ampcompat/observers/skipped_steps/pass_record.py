"""The numbers that are recorded in one backward pass, and the facts derived from them when they are read."""

import math
import sys
from collections import deque
from functools import partial
from typing import Any, NamedTuple, Sequence

import torch

from ...support.torch_compat import fake_tensors
from ...support.torch_compat.thread_context import world_size
from ...support.torch_compat.torch_names import dtype_name
from ..values import NamedScalars, low_dtype, named_maxima, nonfinite_kind
from .skip_facts import COMPILED, NOT_CALLED, NonFinite, OverflowFacts

#: The number of passes that are kept: a step that was skipped is explained with the largest values of those before it.
KEPT = 64

#: The fields of a ``PassRecord`` whose values may grow.
KINDS = ("outputs", "output_gradients", "param_gradients")


class PassRecord(NamedTuple):
    """One backward pass with an overflow check; the numbers stay on the device."""

    number: int  # of the pass, over all losses
    step: int
    loss_id: int
    scale: Any  # a float, or a tensor of shape ()
    scaler: Any
    losses: NamedScalars
    param_gradients: NamedScalars  # unscaled
    outputs: NamedScalars = NamedScalars(())  # of modules, and inputs that functions made, in the order of the forward
    output_dtypes: Sequence = ()
    output_gradients: NamedScalars = NamedScalars(())  # in the order of the backward pass, unscaled
    weights: NamedScalars = NamedScalars(())  # of the forward pass, if the step is not skipped in any case


class RecentPasses:
    """The last ``KEPT`` records of all losses, whose numbers stay on the device until a skipped step is explained.

    Attributes:
        count: how many passes were added.
    """

    def __init__(self):
        self.count, self._records = 0, deque(maxlen=KEPT)

    def add(self, record):
        """Add a ``PassRecord``, unless its numbers are fake."""
        self.count += 1
        vectors = [vector for kind in KINDS for _, vector in getattr(record, kind).vectors]
        if not any([fake_tensors.is_fake_type(type(vector)) for vector in vectors]):
            self._records.append(record)

    def largest_before(self, number):
        """Return a function: (kind, name) -> the largest finite value of passes before one, None if there is none."""
        largest = {}
        for record in [each for each in self._records if each.number < number]:
            for kind in KINDS:
                for name, value in getattr(record, kind).read():
                    if math.isfinite(value):
                        largest[kind, name] = max(value, largest.get((kind, name), value))
        return lambda *key: largest.get(key)

    def clear(self):
        """Forget the passes."""
        self._records.clear()


def read_record(record, policy, models, largest_before, good_passes, skipped):
    """Return the ``OverflowFacts`` of a ``PassRecord``; this waits for the device.

    Args:
        policy: the session's.
        models: (model, function: path -> ``ModelPart``) of the models with hooks.
        largest_before: a function: (kind, name) -> the largest value before this pass, or None.
        good_passes: how many earlier passes of this loss did not overflow.
        skipped: whether the step was skipped.
    """
    computes_in_half = bool(policy.patch_torch_functions) or policy.casts_model
    low = low_dtype(policy)
    outputs = record.outputs.read()
    output = _first_nonfinite(outputs, partial(largest_before, "outputs"), record.output_dtypes)
    is_input = output is not None and output.name.is_input
    cast = _overflowing_cast(outputs, record.output_dtypes, low) if computes_in_half else None
    output_gradient, last_finite = _first_output_gradient(record, low, largest_before)
    gradients = _in_backward_order(record.param_gradients.read(), [name for name, _ in outputs])
    param_gradient = _first_nonfinite(gradients, partial(largest_before, "param_gradients"), [low] * len(gradients))
    if output_gradient is not None and param_gradient is not None and _is_finite_at(record, param_gradient.name):
        output_gradient = None  # the param's gradient overflowed although that of its module's output was finite
    missing_outputs = ""
    if all(name.is_input for name, _ in outputs):
        missing_outputs = COMPILED if "torch._dynamo" in sys.modules else NOT_CALLED  # torch.compile loads this module
    return OverflowFacts(
        step=record.step,
        loss_id=record.loss_id,
        scale=float(record.scale),
        dynamic=record.scaler.dynamic,
        skipped=skipped,
        skips_in_a_row=record.scaler.skips_in_a_row,
        is_min_scale=record.scaler.is_at_floor(),
        good_passes=good_passes,
        low_dtype=dtype_name(low),
        low_max=torch.finfo(low).max,
        computes_in_half=computes_in_half,
        loss=_worst(record.losses),
        input=output if is_input else None,
        output=None if is_input else output,
        bad_weights=_bad_weights(record.weights.read() or _weights_of_module(models, output), output),
        cast=cast,
        param_gradient=param_gradient,
        output_gradient=output_gradient,
        last_finite=last_finite,
        missing_outputs=missing_outputs,
        world_size=world_size(),
    )


def _first_nonfinite(values, max_before, dtypes):
    """Return the ``NonFinite`` of the first value that is inf or nan, or None."""
    for (name, value), dtype in zip(values, dtypes):
        kind = nonfinite_kind(value)
        if kind:
            return NonFinite(name, kind, dtype_name(dtype), max_before(name))
    return None


def _overflowing_cast(outputs, dtypes, low):
    """Return the finite value just before the first non-finite one, if the cast to ``low`` makes it inf; or None."""
    before = None
    for (name, value), dtype in zip(outputs, dtypes):
        if nonfinite_kind(value):
            return before
        is_too_large = value > torch.finfo(low).max and dtype is not low
        before = NonFinite(name, "inf", dtype_name(dtype), value) if is_too_large else None
    return None


def _first_output_gradient(record, low, largest_before):
    """Return the first ``NonFinite`` gradient of an output, and the module at which it was last finite."""
    values = record.output_gradients.read()
    found = _first_nonfinite(values, partial(largest_before, "output_gradients"), [low] * len(values))
    last_finite = None
    for name, value in values if found else ():
        if nonfinite_kind(value):
            break
        last_finite = name
    return found, last_finite


def _is_finite_at(record, param):
    """Return whether gradients of the output of a param's module were recorded and are all finite."""
    module = param.module()
    values = [value for name, value in record.output_gradients.read() if name == module]
    return bool(values) and not any(map(nonfinite_kind, values))


def _in_backward_order(values, calls):
    """Sort the values of params so that those of the last called module come first.

    Modules may be defined in a different order than they run in, so the order is that of the recorded forward pass.

    Args:
        values: (name, value) in the order of definition.
        calls: modules in the order in which their calls ended.
    """
    position = {name: index for index, name in enumerate(calls)}
    keyed, latest = [], -1
    for index, named in enumerate(values):
        # A param of a module that was not recorded stays next to its neighbour.
        latest = position.get(named[0].module(), latest)
        keyed.append((latest, index, named))
    return [named for _, _, named in sorted(keyed, key=lambda each: each[:2], reverse=True)]


def _worst(scalars):
    found = [nonfinite_kind(value) for _, value in scalars.read()]
    return "nan" if "nan" in found else "inf" if "inf" in found else None


def _weights_of_module(models, output):
    """Return (name, maximum) of the current weights of the module of a ``NonFinite`` output."""
    found = []
    for model, part_of in models if output is not None else ():
        for name, module in model.named_modules():
            if name and part_of(name) == output.name:
                found += [(part_of(name + "." + own), param) for own, param in module.named_parameters()]
    return NamedScalars(named_maxima(found)).read()


def _bad_weights(weights, output):
    """Return (name, "inf" or "nan") of the weights of the module of a ``NonFinite`` output that are not finite."""
    if output is None or output.name.is_input:
        return ()
    module = output.name
    own = [
        (name, nonfinite_kind(value))
        for name, value in weights
        if module.is_whole or (name.path.startswith(module.path + ".") and name.model == module.model)
    ]
    return [(name, kind) for name, kind in own if kind]


def weight_maxima(models):
    """Return (``ModelPart``, maximum) of the params of ``ModelNames.models()``; the maxima stay on their devices."""
    return named_maxima((part(name), param) for model, part in models for name, param in model.named_parameters())


def zero_eps(optimizers, low):
    """Return the eps of an optimizer that is 0 for its params of dtype ``low``, in words; "" if there is none."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            eps, is_low = group.get("eps"), any(param.dtype is low for param in group["params"])
            if isinstance(eps, float) and is_low and torch.tensor(eps, dtype=low).item() == 0.0:
                return f"{type(optimizer).__name__}'s eps of {eps}"
    return ""
