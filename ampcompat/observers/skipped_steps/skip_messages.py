"""Explain a skipped step: where inf or nan first occurred, how large the values were before, what to try."""

import math

from ...support.terminal import script_command

#: The origin of a backward pass that no module had a part in.
LOSS = "the loss function"

#: A loss scale, and a number of consecutive skipped steps, at which the scale can no longer be the cause.
LOW_SCALE, MANY_SKIPS = 16.0, 8


def keep_layers():
    """Return how to keep layers in float32. The one that overflows may not be enough: only a forecast knows."""
    script = script_command()
    how = "with keep_fp32 of amp.initialize" if script is None else f"`ampcompat forecast {script}` finds which"
    return f"keep layers in float32 ({how})"


def explain(facts):
    """Return (cause, text, advice): a short name that is the same for equal causes, and sentences."""
    first = facts.input or facts.output
    # The forward pass comes first: non-finite values there made the gradients inf or nan.
    if first and (facts.loss or not (facts.param_gradient or facts.output_gradient)):
        cause, text, advice = _in_forward(facts)
    elif facts.loss:
        cause, text, advice = _in_loss(facts)
    elif facts.output_gradient or facts.param_gradient:
        cause, text, advice = _in_backward(facts)
    else:
        cause, text, advice = _not_found(facts)
    if facts.missing_outputs:
        text += f" No module's output was recorded: {facts.missing_outputs}."
    return cause, text, advice


# -- the forward pass --------------------------------------------------------------------------------------------------


def _in_forward(facts):
    loss = f"The loss was {facts.loss} before scaling" if facts.loss else "The loss was finite"
    if facts.cast:
        return _in_cast(facts, loss)
    value, before = facts.input or facts.output, ""
    if value.max_before is not None:
        whose = "its" if facts.input else "its output's"
        before = f"; {whose} largest absolute value before was {number(value.max_before)}"
    if facts.input:
        text = f"{loss}. In the forward pass {value.kind} was there already in {value.name}, in {value.dtype}{before}."
        return f"{value.kind} in {value.name}", text, _advice_on_input(facts, value)
    module = value.name if value.name.is_whole else f"module {value.name}"
    text = f"{loss}. In the forward pass {value.kind} came first from {module}, in {value.dtype}{before}."
    if facts.bad_weights:
        bad = ", ".join(f"{name} has {kind}" for name, kind in facts.bad_weights)
        return (
            f"{value.kind} in the weights of {value.name}",
            f"{text} Its weights are the cause: {bad}.",
            _advice_on_weights(facts, value),
        )
    return f"{value.kind} in the output of {value.name}", text, _advice_on_output(facts, value)


def _in_cast(facts, loss):
    value, low = facts.cast, facts.low_dtype
    name = value.name if value.name.is_input or value.name.is_whole else f"the output of {value.name}"
    text = (
        f"{loss}. In the forward pass {name} had a largest absolute value of {number(value.max_before)}, in "
        f"{value.dtype}; the cast to {low} made it inf."
    )
    advice = (
        f"scale the input, or normalize it: the largest {low} is {number(facts.low_max)}. Or use O4 or O5, whose "
        "bfloat16 reaches 3e38."
    )
    return f"an overflow in the cast of {name} to {low}", text, "check the data." if low == "bfloat16" else advice


def _advice_on_weights(facts, value):
    if facts.zero_eps:
        return (
            f"{facts.zero_eps} is 0 in {facts.low_dtype}, so that a gradient of 0 becomes 0/0: use eps=1e-4, or a "
            "level with float32 weights for the optimizer (O1, O2), and resume from an earlier checkpoint."
        )
    if facts.step == 0 and value.dtype == "float16" and all(kind == "inf" for _, kind in facts.bad_weights):
        return (
            f"weights beyond the largest float16 ({number(facts.low_max)}) are inf in it: use O4 or O5, whose bfloat16 "
            f"reaches 3e38, or {keep_layers()}."
        )
    cause = f"an earlier step made the weights {value.kind} (a static scale skips no step), or a checkpoint had it: "
    return f"resume from an earlier checkpoint; {cause}lower the learning rate, or clip gradients."


def _advice_on_input(facts, value):
    if facts.computes_in_half and value.kind == "inf" and value.dtype == facts.low_dtype != "bfloat16":
        return (
            f"the functions that compute this input exceed the largest {value.dtype} ({number(facts.low_max)}): "
            f"compute it from x.float(), use O4 or O5, whose bfloat16 reaches 3e38, or {keep_layers()}."
        )
    return "check the data, and what computes this input: torch.isfinite(x).all() finds the bad batches."


def _advice_on_output(facts, value):
    if value.kind == "nan":
        keep = f": {keep_layers()}" if facts.computes_in_half else ""
        underflow = f" In {value.dtype} an eps under 6e-8 is 0{keep}."
        advice = "check {}: nan comes from 0/0, inf - inf, the logarithm or root of a negative number.{}"
        return advice.format(value.name, underflow if value.dtype == "float16" else "")
    if facts.computes_in_half and value.dtype == facts.low_dtype != "bfloat16":
        return (
            f"{value.name} exceeds the largest {facts.low_dtype} ({number(facts.low_max)}): use O4 or O5, whose "
            f"bfloat16 reaches 3e38, or {keep_layers()}."
        )
    return (
        f"{value.name} overflows in {value.dtype}, so no opt level and no loss scale helps: look for a division by a "
        "number near 0 or an exp in it, lower the learning rate, or clip gradients."
    )


def _in_loss(facts):
    outputs = "before scaling" if facts.missing_outputs else "although the outputs of all modules were finite"
    return (
        f"{facts.loss} in the loss",
        f"The loss was {facts.loss} {outputs}.",
        "check the loss function for log(0), a division by 0, the mean of an empty tensor, a bad target, or outputs "
        "that grew because of a high learning rate{}.{}".format(
            "; compute it from output.float()" if facts.computes_in_half else "",
            "" if facts.scale == 1.0 else " A lower loss scale does not help.",
        ),
    )


# -- the backward pass -------------------------------------------------------------------------------------------------


def _in_backward(facts):
    value = facts.output_gradient or facts.param_gradient
    subject = f"gradient at the output of {value.name}" if facts.output_gradient else f"gradient of {value.name}"
    at_scale = "" if facts.scale == 1.0 else f", at scale {number(facts.scale)}"
    text = (
        f"The loss was finite. In the backward pass {value.kind} came first in the "
        f"{subject}{at_scale}{_previous_output(facts)}{_max_before(facts, value)}."
    )
    if facts.output:
        text += f" The output of {facts.output.name} contained {facts.output.kind}, which did not reach the loss."
    if facts.world_size > 1 and facts.output_gradient is None:
        text += " It may come from another rank, through the all-reduce."
    return f"{value.kind} in the {subject}", text, _advice_on_gradient(facts, value)


def _previous_output(facts):
    if facts.output_gradient is None:
        return ""
    if facts.last_finite is None:
        return ", straight from the loss function"
    return f"; one module earlier, at the output of {facts.last_finite}, it was finite"


def _max_before(facts, value):
    if value.max_before is None:
        return ""
    text = f"; its largest unscaled absolute value before was {number(value.max_before)}"
    if facts.scale == 1.0:
        return text
    scaled = value.max_before * facts.scale
    side = "over" if scaled > facts.low_max else "within"
    text += f", which is {number(scaled)} scaled, {side} {facts.low_dtype}'s {number(facts.low_max)}"
    if scaled > facts.low_max or value.kind == "nan" or scaled == 0.0:
        return text
    return f"{text}: this one was over {number(facts.low_max / scaled)} times as large"


def _advice_on_gradient(facts, value):
    origin = _origin(facts, value)
    if value.kind == "nan" and not _may_be_overflow(facts, value):
        return (
            "check the backward pass of {}: nan{} comes from the derivative of a root, norm or logarithm at 0, or from "
            "0 * inf behind a mask. Add an eps; torch.autograd.set_detect_anomaly(True) finds the line.".format(
                origin, ", which lower scales did not change," if facts.skips_in_a_row > 2 else ""
            )
        )
    if not facts.dynamic:
        return _advice_on_static(facts, value)
    not_the_scale = _why_not_the_scale(facts)
    if not_the_scale:
        return (
            f"{not_the_scale}, so the unscaled gradients are too large: {_wider_range(facts)}lower the "
            f"learning rate, or look for a division by a number near 0 in the backward pass of {origin}."
        )
    if facts.good_passes == 0:
        return (
            "nothing. A dynamic scale starts high and is reduced until no gradient overflows, so the first steps are "
            "often skipped; a lower init_scale skips fewer."
        )
    return (
        "nothing, if it is rare: a dynamic scale grows until gradients overflow, and a batch with large gradients may "
        f"overflow earlier. If it persists, {_wider_range(facts)}clip gradients."
    )


def _why_not_the_scale(facts):
    """Return why the loss scale is not the cause of an overflow, or None if it may be."""
    if facts.scale <= LOW_SCALE:
        return "the scale is low already"
    if facts.is_persistent or facts.skips_in_a_row > MANY_SKIPS:
        return "the scale is at its minimum" if facts.is_min_scale else "lower scales did not help"
    return None


def _origin(facts, value):
    """Return the ``ModelPart`` whose backward pass produced the value, or ``LOSS``."""
    if facts.output_gradient is None:
        return value.name.module()
    if facts.last_finite is None:
        return LOSS
    return value.name if facts.last_finite.is_whole else facts.last_finite


def _may_be_overflow(facts, value):
    """Return whether a nan may be the result of an inf: the gradient was near the limit, and there were few skips."""
    near = value.max_before is not None and value.max_before * facts.scale > facts.low_max
    return near and facts.skips_in_a_row <= 2


def _advice_on_static(facts, value):
    if value.max_before:
        safe = 2.0 ** math.floor(math.log2(facts.low_max / value.max_before))
        if safe < facts.scale:
            return f'loss_scale={number(safe)}, at which earlier gradients do not overflow, or loss_scale="dynamic".'
    wider = _wider_range(facts)
    return f"the gradients are too large for {facts.low_dtype}: {wider}lower the learning rate, or clip gradients."


def _not_found(facts):
    if facts.world_size > 1:
        return (
            "an overflow on another rank",
            "Nothing on this rank was inf or nan: the gradients of another rank overflowed, and all ranks skip.",
            "use diagnose on every rank, and check the batch of that rank.",
        )
    return (
        "an overflow of unknown origin",
        "The loss was finite, and so is every gradient that still exists.",
        "look for a second backward pass, or for code that changes gradients between backward() and the end of the "
        "scale_loss block.",
    )


# -- text --------------------------------------------------------------------------------------------------------------


def _wider_range(facts):
    """Return the options with a wider range than float16, as the start of a list."""
    if not facts.computes_in_half or facts.low_dtype == "bfloat16":
        return ""
    return f"use O4 or O5 (bfloat16 needs no loss scale), {keep_layers()}, or "


def number(value):
    """Format a number: integers up to a million in full, others with three digits."""
    return f"{value:.0f}" if abs(value) < 1e6 and value == int(value) else f"{value:.3g}"
