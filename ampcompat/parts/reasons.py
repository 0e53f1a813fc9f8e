"""Why a step was skipped, in words, and what to try.

Owns: ``Evidence`` (plain numbers and names), ``explain`` (sentences from them).
Must not touch: torch and tensors; whoever collects the evidence has read them.
The surprise: the forward pass comes before the backward pass, here too. Where a module's output was inf, the gradients
are only its victims, and are not blamed.
"""

import math
from typing import NamedTuple, Optional, Sequence


#: What a model is called that has no name in a larger one, before its class; and where a backward pass comes from.
WHOLE = "the whole "
LOSS = "the loss function"


#: A scale that is no longer to blame, and as many skips in a row.
LOW_SCALE, MANY_SKIPS = 16.0, 8


class Place(NamedTuple):
    """Where something was inf or nan: a module's output, the gradient at it, or a param's gradient."""

    name: str  # "layer3.weight"
    what: str  # "inf" or "nan"
    dtype: str  # "float16"
    before: Optional[float] = None  # its largest finite magnitude on earlier passes, in true units


class Evidence(NamedTuple):
    """What was found in one skipped step. Of everything the first in its order; None where there was nothing."""

    step: int
    loss_id: int
    scale: float
    dynamic: bool = True
    skips: bool = True  # False where the scale is static and the step was taken all the same
    skips_in_a_row: int = 1
    good_passes: int = 0  # before it
    low: str = "float16"  # what half means, and the greatest number that it has
    limit: float = 65504.0
    casts: bool = True  # whether the level computes anything in half
    loss: Optional[str] = None  # "inf" or "nan"
    input: Optional[Place] = None  # what went into a module, if that was bad before any output was
    output: Optional[Place] = None
    weights: Sequence[str] = ()  # of that module, "layer3.weight is nan"
    gradient: Optional[Place] = None
    arriving: Optional[Place] = None  # the gradient at a module's output
    after: Optional[str] = None  # the module at whose output the gradient was finite just before
    heard: bool = True  # False where no module's output was heard: compiled, scripted
    ranks: int = 1


def explain(evidence):
    """Return (cause, facts, advice): a few words that are equal for equal causes, and sentences."""
    began = evidence.input or evidence.output
    if began and (evidence.loss or not (evidence.gradient or evidence.arriving)):
        cause, facts, advice = _in_forward(evidence)
    elif evidence.loss:
        cause, facts, advice = _in_loss(evidence)
    elif evidence.arriving or evidence.gradient:
        cause, facts, advice = _in_backward(evidence)
    else:
        cause, facts, advice = _nowhere(evidence)
    if not evidence.heard:
        facts += " No module's output was heard: what torch.compile or TorchScript has compiled is not looked into."
    return cause, facts, advice


# -- the forward pass --------------------------------------------------------------------------------------------------


def _in_forward(evidence):
    loss = "The loss was {} before scaling".format(evidence.loss) if evidence.loss else "The loss was finite"
    if evidence.input:
        place = evidence.input
        before = _before(place.before, "; its largest magnitude before was")
        facts = "{}. In the forward pass {} was there already in {}, in {}{}."
        facts = facts.format(loss, place.what, place.name, place.dtype, before)
        return "{} in {}".format(place.what, place.name), facts, _advice_on_input(evidence, place)
    place = evidence.output
    facts = "{}. In the forward pass {} came first from module {}, in {}{}.".format(
        loss, place.what, place.name, place.dtype, _before(place.before, "; its output's largest magnitude before was")
    )
    if evidence.weights:
        return (
            "{} in the weights of {}".format(place.what, place.name),
            "{} Its weights are to blame: {}.".format(facts, ", ".join(evidence.weights)),
            "go back to a checkpoint from before; an earlier step spoiled the weights (a static scale never skips "
            "one): lower the learning rate, or clip gradients.",
        )
    return "{} in the output of {}".format(place.what, place.name), facts, _advice_on_output(evidence, place)


def _advice_on_input(evidence, place):
    if evidence.casts and place.what == "inf" and place.dtype == evidence.low != "bfloat16":
        return (
            "the functions that compute this input make more than {} can hold ({}): compute it from x.float(), or use O4 "
            "or O5, whose bfloat16 reaches 3e38.".format(place.dtype, number(evidence.limit))
        )
    return "look at the data, or at what computes this input: torch.isfinite(x).all() finds the bad ones."


def _advice_on_output(evidence, place):
    kept = _kept(evidence, place.name)
    if place.what == "nan":
        narrow = " In {} an eps under 6e-8 is 0{}.".format(place.dtype, ", so" + kept if kept else "")
        advice = "look into {}: nan comes from 0/0, inf - inf, the logarithm or root of a negative number.{}"
        return advice.format(place.name, narrow if place.dtype == "float16" else "")
    if kept and place.dtype == evidence.low != "bfloat16":
        return "{} computes more than {} can hold ({}):{}, or O4 or O5, whose bfloat16 reaches 3e38.".format(
            place.name, evidence.low, number(evidence.limit), kept
        )
    return (
        "{} leaves the range of {} by itself, so no opt level and no loss scale helps: look for a division by "
        "something near 0 or an exp in it, lower the learning rate, or clip gradients.".format(place.name, place.dtype)
    )


def _in_loss(evidence):
    outputs = "although the outputs of all modules were finite" if evidence.heard else "before scaling"
    return (
        "{} in the loss".format(evidence.loss),
        "The loss was {} {}.".format(evidence.loss, outputs),
        "look at the loss function: log(0), a division by 0, the mean of nothing, a bad target, or outputs that a learning rate "
        "too high has made large{}.{}".format(
            "; compute it from output.float()" if evidence.casts else "",
            "" if evidence.scale == 1.0 else " A lower loss scale does not help.",
        ),
    )


# -- the backward pass -------------------------------------------------------------------------------------------------


def _in_backward(evidence):
    place = evidence.gradient if evidence.arriving is None else evidence.arriving
    if evidence.arriving is None:
        subject = "gradient of {}".format(place.name)
    else:
        subject = "gradient at the output of {}".format(place.name)
    facts = "The loss was finite. In the backward pass {} came first in the {}{}{}{}.".format(
        place.what, subject, _at_scale(evidence), _route(evidence), _magnitude(evidence, place)
    )
    if evidence.output:
        facts += " The output of {} held {}, which did not reach the loss.".format(
            evidence.output.name, evidence.output.what
        )
    if evidence.ranks > 1 and evidence.arriving is None:
        facts += " It may have come from another rank, by averaging."
    return "{} in the {}".format(place.what, subject), facts, _advice_on_gradient(evidence, place)


def _at_scale(evidence):
    return "" if evidence.scale == 1.0 else ", at scale {}".format(number(evidence.scale))


def _route(evidence):
    if evidence.arriving is None:
        return ""
    if evidence.after is None:
        return ", straight from the loss function"
    return "; one stop earlier, at the output of {}, it was finite".format(evidence.after)


def _magnitude(evidence, place):
    if place.before is None:
        return ""
    facts = "; its largest true magnitude before was {}".format(number(place.before))
    if evidence.scale == 1.0:
        return facts
    scaled = place.before * evidence.scale
    facts = "{}, which is {} scaled, {} {}'s {}".format(
        facts, number(scaled), "over" if scaled > evidence.limit else "within", evidence.low, number(evidence.limit)
    )
    if scaled > evidence.limit or place.what == "nan" or scaled == 0.0:
        return facts
    return "{}: this one was over {} times as large".format(facts, number(evidence.limit / scaled))


def _advice_on_gradient(evidence, place):
    origin = _origin(evidence, place)
    if place.what == "nan" and not _fits_overflow(evidence, place):
        return (
            "look into the backward pass of {}: nan{} comes from the slope of a root, norm or logarithm at 0, or 0 * "
            "inf behind a mask. Add an eps inside it; torch.autograd.set_detect_anomaly(True) finds the line.".format(
                origin, ", which lower scales did not change," if evidence.skips_in_a_row > 2 else ""
            )
        )
    if not evidence.dynamic:
        return _advice_on_static(evidence, place)
    if evidence.scale <= LOW_SCALE or evidence.skips_in_a_row > MANY_SKIPS:
        return (
            "{}, so these gradients are truly large: {}lower the learning rate, or look for a division by something "
            "near 0 in the backward pass of {}.".format(
                "the scale is low already" if evidence.scale <= LOW_SCALE else "lower scales did not help",
                _levels(evidence, origin),
                origin,
            )
        )
    if evidence.good_passes == 0:
        return (
            "nothing. A dynamic scale starts high and is halved until the gradients fit, so the first steps are often "
            "skipped; a lower init_scale skips fewer."
        )
    return (
        "nothing, if it is rare: a dynamic scale grows until it is too high, or a batch with large gradients comes by, "
        "and a step is lost. If it goes on, {}clip gradients.".format(_levels(evidence, origin))
    )


def _origin(evidence, place):
    """Return what to look into: the module whose backward pass was under way."""
    if evidence.arriving is None:
        return _module(place.name)
    if evidence.after is None:
        return LOSS
    return place.name if evidence.after.startswith(WHOLE) else evidence.after


def _fits_overflow(evidence, place):
    """Return whether a nan can be what became of an inf: the gradient was about to leave the range, and not for long."""
    near = place.before is not None and place.before * evidence.scale > evidence.limit
    return near and evidence.skips_in_a_row <= 2


def _advice_on_static(evidence, place):
    fitting = _fitting(evidence, place)
    if fitting and fitting < evidence.scale:
        return "loss_scale={}, which fits what came before, or loss_scale=\"dynamic\".".format(number(fitting))
    origin = _origin(evidence, place)
    return "{}lower the learning rate, or clip gradients.".format(_levels(evidence, origin))


def _fitting(evidence, place):
    """Return the greatest power of two by which the magnitude before can be scaled, or None."""
    if not place.before:
        return None
    return 2.0 ** math.floor(math.log2(evidence.limit / place.before))


def _nowhere(evidence):
    if evidence.ranks > 1:
        return (
            "an overflow on another rank",
            "Nothing on this rank was inf or nan: the gradients of another rank overflowed, and ranks skip together.",
            "run with diagnose on that rank alone, or look at its batch.",
        )
    return (
        "an overflow that left no trace",
        "The loss was finite, and so is every gradient that is still there.",
        "look for a second backward pass, or for code that changes gradients between backward() and the end of the "
        "scale_loss block.",
    )


def _module(param):
    """Return the module of a param: "layer3 of G" for "layer3.weight of G"."""
    name, of, model = param.partition(" of ")
    return (name.rpartition(".")[0] or name) + of + model


# -- words -------------------------------------------------------------------------------------------------------------


def _kept(evidence, name):
    """Return the keyword that keeps a module in float32, or "" where there is none to keep."""
    module = name.partition(" of ")[0]
    if not evidence.casts or module == LOSS:
        return ""
    whole = module.startswith(WHOLE)
    return " keep_fp32=[{}]".format(module[len(WHOLE) :] if whole else "\"{}\"".format(module))


def _levels(evidence, name):
    """Return what to try against a range that is too small, as the beginning of a list."""
    if not evidence.casts or evidence.low == "bfloat16":
        return ""
    kept = _kept(evidence, name)
    return "use O4 or O5 (bfloat16 needs no loss scale){}, or ".format("," + kept if kept else "")


def _before(value, words):
    return "" if value is None else "{} {}".format(words, number(value))


def number(value):
    """Spell a number: whole ones as they are up to a million, others with three digits."""
    return "{:.0f}".format(value) if abs(value) < 1e6 and value == int(value) else "{:.3g}".format(value)
