"""Messages about values that grow: what led up to a skipped step, and a warning before one."""

import math

from .skip_messages import keep_layers, number

#: The growth from which on a value is reported as leading up to a skipped step.
GROWN = 2.0

#: How many values are reported, and how many of their passes.
MOST, PASSES = 3, 6

_WHAT = {
    "outputs": "output of {}",
    "output_gradients": "gradient at the output of {}",
    "param_gradients": "gradient of {}",
}


def what(growth):
    """Return a description of what grows: a module's output or input, or a gradient."""
    if growth.name.is_input:
        return f"input of {growth.name._replace(is_input=False)}"
    return _WHAT[growth.kind].format(growth.name)


def led_up(growths, facts):
    """Return the ``Growth`` objects to report for a skipped step: that of its cause, then those that grew the most.

    Args:
        growths: those of the preceding passes.
        facts: the ``OverflowFacts`` of the step.
    """
    if facts.input and not facts.input.name.path:  # it was in the data: nothing in the model led up to it
        return ()
    cause = _cause(facts)
    causes = {cause} | ({("outputs", facts.output.name)} if facts.output else set())
    own = [each for each in growths if (each.kind, each.name) in causes]
    kinds = {cause[0]} if cause is not None else {"outputs", "param_gradients"}
    grown = [each for each in growths if each.factor >= GROWN and each.kind in kinds and each not in own]
    told = list(own)
    for each in sorted(grown, key=lambda each: -each.factor):
        is_new = all(each.values != other.values for other in told)  # a container returns what a child did
        if len(told) < MOST and is_new:
            told.append(each)
    return tuple(told)


def _cause(facts):
    """Return (kind, name) of the first non-finite value, as in ``skip_messages.explain``; None for the loss."""
    forward = facts.cast or facts.input or facts.output
    if forward and (facts.loss or not (facts.param_gradient or facts.output_gradient)):
        return "outputs", forward.name
    if facts.loss:
        return None
    if facts.output_gradient is not None:
        return "output_gradients", facts.output_gradient.name
    return None if facts.param_gradient is None else ("param_gradients", facts.param_gradient.name)


def history(facts):
    """Return a list with the line on how the largest values changed before a skipped step, or an empty list."""
    told = [f"{what(each)} {_values(each)}" for each in facts.led_up]
    if not told:
        return []
    grew = [each for each in facts.led_up if each.factor >= GROWN]
    end = "" if grew else "; none of it grew"
    unscaled = ", unscaled" if any(each.kind != "outputs" for each in facts.led_up) else ""
    return [f"Largest absolute values in the passes before{unscaled}: {'; '.join(told)}{end}."]


def _values(growth):
    told = ", ".join(_short(value) for value in growth.values[-PASSES:])
    if growth.factor < GROWN:
        return told
    if math.isinf(growth.factor):
        return told + " (from 0)"
    return f"{told} ({_times(growth)} in {len(growth.values)} passes)"


def _times(growth):
    return f"{growth.factor:.1f}-fold" if growth.factor < 10 else f"{growth.factor:.3g}-fold"


def _short(value):
    """Return a number with three digits, without an exponent unless needed."""
    return f"{float(f'{value:.3g}'):.10g}" if 1e-3 <= value < 1e7 or not value else f"{value:.3g}"


def warning(foreseen):
    """Return the warning of a ``Foreseen`` overflow."""
    growth, passes = foreseen.growth, foreseen.passes
    scaled = "" if foreseen.scale == 1.0 else " at the loss scale"
    text = (
        f"the largest absolute value of the {what(growth)} has grown {_times(growth)} in {len(growth.values)} passes, "
        f"to {_short(growth.values[-1] * foreseen.scale)}{scaled}. If this continues, it exceeds the largest "
        f"{foreseen.dtype} ({number(foreseen.limit * foreseen.scale)}) in about {passes} "
        f"pass{'' if passes == 1 else 'es'}."
    )
    return f"{text}\n    What to try: {_advice(foreseen)}"


def _advice(foreseen):
    growth = foreseen.growth
    if growth.kind != "outputs":
        return 'loss_scale="dynamic", a lower learning rate, or clip gradients.'
    cause = "find what makes it grow: a learning rate that is too high, a state that is never reset, unnormalized data"
    if foreseen.dtype != "float16":
        return f"{cause}. No opt level and no loss scale helps."
    return f"{cause}; or use O4 or O5, whose bfloat16 reaches 3e38, or {keep_layers()}."
