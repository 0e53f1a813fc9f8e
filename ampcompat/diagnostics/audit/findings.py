"""The rules of an audit: what the observed facts mean, and what to do.

A finding is ``wrong`` if the run's result is not what the script means to compute. Others are notes.
"""

import re
from typing import List, NamedTuple, Optional

import torch

from ...abtest import number_format
from ...support.torch_compat.torch_names import dtype_name

#: Weights follow their float32 twin if ``ParamUpdates.kept`` is at least this.
FOLLOWS = 0.5

#: An optimizer keeps what rounding loses if more than this share of ``ParamUpdates.far`` elements have moved: with
#: stochastic rounding, 0.4 of those that are half a unit away, and none with rounding to nearest.
KEEPS = 0.2

#: The share of gradient elements below float16's smallest normal number that is wrong without a loss scale.
UNDERFLOW = 0.05

#: The share of zeros in half optimizer state, that float32 state does not have, that is wrong.
ZEROS = 0.1

#: The share of elements, of half averages or of decaying weights, that is wrong if they do not move.
STILL = 0.5

_CAST_A_COPY = "Cast a copy (copy.deepcopy(model).half()) where the script validates or saves."

_KEEP_STATE = "Keep the optimizer's state in float32."

_LEVELS = {torch.float16: "O2", torch.bfloat16: "O5"}

#: Options of scripts that ask for half precision, and values of options that do.
_FLAG = re.compile(r"^--?(use[-_])?(fp16|bf16|bfloat16|float16|half|amp|mixed[-_]precision|autocast)$")
_OPTION = re.compile(r"^--?(mixed[-_]precision|precision|dtype|torch[-_]dtype|amp[-_]dtype)$")
_HALF_VALUE = re.compile(r"^(fp16|bf16|float16|bfloat16|half|(bf)?16(-mixed|-true)?)$")
_OFF = ("false", "no", "0", "none", "off", "fp32", "float32")


class Layer(NamedTuple):
    """A param that a finding names: its elements, how many of them did not move, and the share of updates lost."""

    name: str
    numel: int
    unmoved: int
    lost: Optional[float]


class AuditFinding(NamedTuple):
    """What an audit says.

    ``kind``: a word for programs; ``text``: what was seen; ``remedy``: what to do; ``level``: the opt level that
    repairs it, or None; ``layers``: the worst first.
    """

    kind: str
    is_wrong: bool
    text: str
    remedy: str
    level: Optional[str] = None
    layers: List[Layer] = []


def of_optimizers(watched, params, names):
    """Yield the findings about the params and the state of optimizers.

    Args:
        watched: the ``OptimizersAlike``.
        params: what its ``params()`` returned.
        names: ``{param: name}``.
    """
    half = {param: each for param, each in params.items() if each.unmoved is not None}
    if half:
        yield from _lost_updates(watched, half, names)
        yield from _rounded_eps(watched, next(iter(half)).dtype)
    yield from _rounded_state(watched, params, names)
    if watched.dtypes_before:
        yield _changed_dtypes(watched, names)
    rounded = watched.rounded()
    if rounded is not None:
        text = (
            f"The float32 weights that {watched.kind} trains, such as {names.get(rounded[0], '?')}, were rounded to "
            f"{dtype_name(rounded[1])} between steps."
        )
        yield AuditFinding("rounded_weights", True, text, _CAST_A_COPY)


def _lost_updates(watched, params, names):
    dtype = dtype_name(next(iter(params)).dtype)
    level = _LEVELS[next(iter(params)).dtype]
    kind = watched.kind
    if watched.problem is not None and not watched.compared:
        text = (
            f"{kind} updates {dtype} weights; its steps could not be repeated in float32 ({watched.problem}). "
            f"After {watched.steps} steps, {_share_unmoved(params)} of all elements have not moved at all."
        )
        yield AuditFinding("half_weights", False, text, f"Compare with float32 masters: run at {level}.", level)
        return
    nonfinite = [each for each in params.values() if each.nonfinite]
    if nonfinite:
        text = f"{len(nonfinite)} {dtype} params have elements that are inf or nan after {watched.steps} steps."
        layers = [Layer(names.get(each.param, "?"), each.numel, each.unmoved, each.lost) for each in nonfinite]
        yield AuditFinding("nonfinite_weights", True, text, "Keep float32 masters and state.", level, layers)
        return
    far = sum(each.far for each in params.values())
    if far and sum(each.far_and_moved for each in params.values()) > KEEPS * far:
        return  # the optimizer keeps what rounding loses
    behind = [each for each in params.values() if each.kept is not None and each.kept < FOLLOWS]
    if not behind:
        text = (
            f"{kind} updates {dtype} weights without float32 masters. In these steps{_rates(watched)} the updates were "
            "large enough."
        )
        yield AuditFinding("half_weights", False, text, "Audit again where the learning rate is smallest.", level)
        yield from _lost_decay(watched, dtype, level)
        yield from _lost_warm_up(watched, params, level)
        return
    yield _lost(watched, params, behind, names)


def _lost(watched, params, behind, names):
    """Return the finding of params whose updates are lost; ``behind``: the ``ParamUpdates`` of these."""
    dtype, kind = next(iter(params)).dtype, watched.kind
    layers = [Layer(names.get(each.param, "?"), each.numel, each.unmoved, each.lost) for each in behind]
    layers.sort(key=lambda each: (-each.unmoved / max(each.numel, 1), -each.numel))
    lost = sum(each.lost * each.meant for each in params.values() if each.meant)
    lost = number_format.share(lost / sum(each.meant for each in params.values()))
    text = (
        f"{kind} updates {dtype_name(dtype)} weights without float32 masters, and most updates of {len(behind)} of "
        f"{len(params)} params are lost{_rates(watched)}: they are smaller than half a unit in the last place of the "
        f"weights. Of all updates {lost} are lost, and after {watched.steps} steps {_share_unmoved(params)} of all "
        "elements have not moved at all."
    )
    decay = watched.lost_decay()
    if decay is not None and decay > STILL:
        text += f" Weight decay does not change {number_format.share(decay)} of the elements."
    more = number_format.size(_more_bytes(watched, params))
    remedy = (
        f"Keep float32 masters, state and gradients, which take {more} more. Updates that were lost will count: the "
        "learning rate may have to be smaller."
    )
    return AuditFinding("lost_updates", True, text, remedy, _LEVELS[dtype], layers)


def _rates(watched):
    if not watched.rates:
        return ""
    first, last = watched.rates
    return f" (lr {last:.3g})" if first == last else f" (lr {first:.3g} to {last:.3g})"


def _lost_decay(watched, dtype, level):
    share = watched.lost_decay()
    if share is not None and share > STILL:
        text = (
            f"{watched.kind}'s weight decay has no effect: {dtype} weights times "
            f"1 - lr * weight_decay are rounded to what they were ({number_format.share(share)} of all elements)."
        )
        yield AuditFinding("lost_decay", True, text, "Keep float32 masters, which decay.", level)


def _lost_warm_up(watched, params, level):
    lost = [each for each in params.values() if each.kept_early is not None and each.kept_early < FOLLOWS]
    if len(lost) > len(params) / 2 and watched.rates and watched.rates[0] < watched.rates[1]:
        text = (
            f"Most updates of {len(lost)} of {len(params)} params were lost in the first steps, at the smallest "
            "learning rates, and later ones were not: the warm-up begins late."
        )
        yield AuditFinding("lost_warm_up", False, text, "Keep float32 masters.", level)


def _share_unmoved(params):
    unmoved, numel = (sum(getattr(each, name) for each in params.values()) for name in ("unmoved", "numel"))
    return number_format.share(unmoved / numel)


def _more_bytes(watched, params):
    """Return the bytes of float32 masters, and what gradients and the state take more in float32."""
    states = watched.state()
    state = [value for param in params for value in states.get(param, {}).values()]
    tensors = [each for each in state if isinstance(each, torch.Tensor) and each.dtype in _LEVELS]
    return 6 * sum(each.numel for each in params.values()) + 2 * sum(each.numel() for each in tensors)


def _rounded_state(watched, params, names):
    zeros = {}
    for param, updates in params.items():
        for name, share in updates.zeros.items():
            if share > ZEROS:
                zeros.setdefault(name, []).append((share, names.get(param, "?"), updates.numel, param))
    for name, found in zeros.items():
        share, layer, numel, param = max(found, key=lambda each: each[:2])
        dtype = dtype_name(watched.state()[param][name].dtype)
        text = (
            f"{watched.kind}'s {name} is {dtype} and rounds to 0 where float32 does not: in "
            f"{len(found)} params, worst {layer} ({number_format.share(share)})."
        )
        yield AuditFinding("rounded_state", True, text, _KEEP_STATE, _LEVELS.get(param.dtype))


def _rounded_eps(watched, dtype):
    for group in watched.groups():
        eps = group.get("eps")
        if isinstance(eps, float) and eps > 0 and float(torch.tensor(eps).to(dtype)) == 0:
            text = f"{watched.kind}'s eps {eps:g} is 0 in {dtype_name(dtype)}: it divides by 0."
            yield AuditFinding("rounded_eps", True, text, _KEEP_STATE, _LEVELS[dtype])
            return


def _changed_dtypes(watched, names):
    changed = watched.dtypes_before
    param = next(iter(changed))
    text = (
        f"{len(changed)} params that {watched.kind} trains changed their dtype between steps: "
        f"{names.get(param, '?')} was {dtype_name(changed[param])} and is {dtype_name(param.dtype)}. The optimizer's "
        "state is of the earlier dtype, and rounded weights stay rounded."
    )
    return AuditFinding("changed_dtype", True, text, _CAST_A_COPY)


def replaced_params(replaced, names):
    """Yield the finding about params that are not those of their model any more; ``replaced``: ``{param: dtype}``."""
    for param, dtype in list(replaced.items())[:1]:
        text = (
            f"{len(replaced)} params that an optimizer trains are not the model's any more: the model has "
            f"{names.get(param, '?')} in {dtype_name(dtype)} now, in another tensor, which does not train."
        )
        yield AuditFinding("replaced_params", True, text, _CAST_A_COPY)


def average_stands_still(names, share):
    """Yield the finding about half averages of weights: the names of those, and the share that does not move."""
    if share > STILL:
        text = (
            f"A half-precision average of {len(names)} weights (such as {names[0]}) stands still: when the script "
            f"moves it, {number_format.share(share)} of the elements that differ from the weights' do not change."
        )
        yield AuditFinding("half_average", True, text, "Keep the average in float32.")


def undone_casts(casts):
    """Yield a finding about those ``UndoneCast``s that round integers, and a note about the others."""
    remedy = "Call it in a region torch.autocast(…, enabled=False)."
    for is_wrong in (True, False):
        found = [each for each in casts if is_wrong == (each.rounded is not None) and each.rounded != 0]
        for first in found[:1]:
            cast, call, dtype = _at(first.cast)[:-1], _at(first.call)[:-1], dtype_name(first.dtype)
            text = f"explicitly cast to float32{cast} are cast to {dtype} by {first.function}{call} under autocast"
            more = f", and so in {len(found) - 1} more places." if len(found) > 1 else "."
            if is_wrong:
                text = f"Integers that are {text}, and {int(first.rounded)} of them change{more}"
                yield AuditFinding("rounded_integers", True, text, remedy)
            else:
                text = f"Half values that are {text}: the first cast has no effect{more}"
                yield AuditFinding("undone_cast", False, text, remedy + " Or leave the first cast out.")


def autocast_and_scaler(calls, gradients):
    """Yield findings about autocast regions and ``GradScaler``."""
    underflow = gradients.float16_underflow() if calls.scaled is None else None
    if underflow is not None:
        what, share = underflow
        elements = f"{number_format.share(share)} of the gradients' elements are {what} in float16"
        text = f"float16 without a loss scale: {elements}"
        remedy = "Scale the loss with torch.amp.GradScaler, or use bfloat16, which needs no scale."
        region = calls.regions.get(torch.float16)
        level = "O2" if region is None else "O1"  # of float16 weights, or of autocast
        yield AuditFinding("no_scaler", share > UNDERFLOW, text + _at(region), remedy, level)
    if calls.scaled is not None and torch.bfloat16 in calls.regions and torch.float16 not in calls.regions:
        text = "A GradScaler scales losses of bfloat16 autocast, whose range is float32's" + _at(calls.scaled)
        yield AuditFinding("needless_scaler", False, text, "Leave the GradScaler out: it costs time and skips steps.")
    if calls.clipped_scaled is not None:
        text = "Gradients are clipped while they are multiplied by the loss scale" + _at(calls.clipped_scaled)
        yield AuditFinding("clipped_scaled", True, text, "Call scaler.unscale_(optimizer) before it clips.")
    for name, place in calls.within_autocast.items():
        function = "backward()" if name == "backward" else "optimizer.step()"
        text = f"{function} runs within an autocast region" + _at(place)
        yield AuditFinding(name + "_in_autocast", False, text, "End the region after the loss.")


def half_sums(calls, sums):
    """Yield notes about sums of gradients in half precision."""
    if calls.accumulated is not None:
        text = "Gradients of several backward passes are added up in half precision" + _at(calls.accumulated)
        yield AuditFinding("half_accumulation", False, text, "Float32 masters add them up in float32.")
    if sums.are_half:
        half = {dtype_name(dtype) for dtype in _LEVELS}
        parts = [f"{dtype} (by {', '.join(names)})" for dtype, names in sums.dtypes.items() if dtype in half]
        text = f"Ranks add up their tensors in {' and '.join(parts)}."
        yield AuditFinding("half_reduction", False, text, "Add them up in float32 where ranks are many.")


def dead_flag(argv):
    """Yield the finding about an argument that asks for half precision; nothing in the run was half."""
    for argument, following in zip(argv, [*argv[1:], ""]):
        name, _, value = argument.partition("=")
        value = (value or ("" if following.startswith("-") else following)).lower()
        asks = _FLAG.match(name) and value not in _OFF and (value == "" or "=" not in argument or _asks(value))
        if asks or (_OPTION.match(name) and _HALF_VALUE.match(value)):
            text = f"The script got {argument}, and nothing was half: no weights, and nothing in an autocast region."
            yield AuditFinding("dead_flag", True, text, "Look where the script reads the option.")
            return


def _asks(value):
    return value in ("true", "yes", "1", "on") or _HALF_VALUE.match(value)


def _at(place):
    return "." if place is None else " ({}:{}).".format(*place)
