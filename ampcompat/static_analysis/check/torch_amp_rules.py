"""Rules on scripts without Apex that use torch.amp, or train half weights. Each search yields (rule, node, detail)."""

import ast

from ..reading.calls import CLIPS, argument, is_backward, is_half_cast, loads_half
from ..reading.flow import together
from ..reading.loops_without_apex import LoopsWithoutApex, prefixes
from ..reading.names import called, dotted, last_name, names_used
from ..reading.nodes import nodes_of
from ..reading.torch_amp import TorchAmp

#: A Python file without any of these has nothing to search for.
HINTS = ("autocast", "GradScaler", ".scale(", "half", "float16", "dtype=")
#: Parts of names in scripts that train other weights than the half ones: masters, adapters, new layers.
_OTHERWISE = ("master", "fp32", "fp16_opt", "fp16opt", "peft", "adapter", "kbit", "requires_grad", "freeze")
_WIDER = ("float", "double")
#: The float16 regions in one function that are examined.
_MOST = 20
_ASSIGNMENTS = (ast.Assign, ast.AugAssign)


def check(source):
    """Return the findings on torch.amp and half weights in a ``Source`` that does not use Apex."""
    loops = LoopsWithoutApex(source)
    if not loops.backward_calls:
        return []
    script = _Training(source, loops)
    return [source.problem(*row) for search in _SEARCHES for row in search(script)]


class _Training:
    """What a script trains with.

    Attributes:
        source: its ``Source``.
        optimizers: the statements that create an optimizer.
        scalers: name of a variable -> the call of ``GradScaler`` that is assigned to it.
        regions: the calls of ``autocast``, but those that are always disabled.
        words: every name in the script, in lower case.
    """

    def __init__(self, source, loops):
        self.source, self._amp = source, TorchAmp(source)
        self.dtype = self._amp.dtype
        self.optimizers = loops.optimizers
        attributes = {node.attr for node in source.nodes if isinstance(node, ast.Attribute)}
        self.words = {word.lower() for word in names_used(source.nodes) | attributes}
        self.regions = {call for call in self._amp.regions if self._may_cast(call)}
        self.scalers = {dotted(node.targets[0]): calls[-1] for node, calls in self._amp.made_scalers.items()}
        self._variables = {dotted(node.targets[0]): calls[-1] for node, calls in self._amp.made_regions.items()}

    def _may_cast(self, region):
        return getattr(self._amp.enabled(region), "value", True) is not False

    def entered(self, statement):
        """Return the call of the autocast region that a ``with`` enters, also by a variable, or None."""
        items = statement.items if isinstance(statement, (ast.With, ast.AsyncWith)) else ()
        calls = [self._variables.get(dotted(item.context_expr), item.context_expr) for item in items]
        return next(filter(self._amp.is_region, reversed(calls)), None)

    def is_under_autocast(self, step):
        """Return whether the innermost autocast region around a step of a function may be enabled."""
        return next(filter(None, map(self.entered, reversed(step.blocks))), None) in self.regions


def _float16_without_scaler(script):
    """Search for losses of float16 autocast regions whose backward pass is not scaled."""
    if any("scale" in word for word in script.words):
        return
    for _, steps in script.source.scopes:
        regions = [(at, script.entered(step.node)) for at, step in enumerate(steps)]
        regions = [
            (at, call) for at, call in regions if call in script.regions and script.dtype(call) == "torch.float16"
        ]
        if not regions:
            continue
        assigned = [(at, *_names_in(step.node)) for at, step in enumerate(steps) if isinstance(step.node, _ASSIGNMENTS)]
        backward = [(at, each) for at, step in enumerate(steps) for each in filter(is_backward, step.calls())]
        for at, call in regions[:_MOST]:
            computed = _computed(steps[at].node, (names for later, *names in assigned if later > at))
            losses = (dotted(each.func.value) for later, each in backward
                      if later > at and together(steps[later], steps[at]))  # fmt: skip
            if any(loss in computed for loss in losses):
                yield "float16-without-scaler", call, ""


def _computed(region, assigned):
    """Return the variables that are computed in an autocast region, and from these after it.

    Args:
        assigned: what ``_names_in`` returns for each assignment after it.
    """
    _, found = _names_in(region)
    for names, stored in assigned:
        if found & names:
            found |= stored
    return found


def _names_in(statement):
    """Return (the dotted names in a statement, those of them that it assigns), as sets."""
    named = [(dotted(node), node) for node in nodes_of(statement) if isinstance(node, (ast.Name, ast.Attribute))]
    stored = {name for name, node in named if isinstance(node.ctx, ast.Store)}
    return {name for name, _ in named} - {None}, stored - {None}


def _in_autocast(script):
    """Search for backward passes, steps of optimizers, and updates of weight averages in autocast regions."""
    stepping = {dotted(made.targets[0]) for made in script.optimizers}.union(script.scalers)
    for _, steps in script.source.scopes:
        for step in steps:
            for call in step.calls() if script.is_under_autocast(step) else ():
                owner = dotted(getattr(call.func, "value", None)) or ""
                if is_backward(call):
                    yield "backward-in-autocast", call, ""
                elif called(call) == "step" and owner in stepping:
                    yield "step-in-autocast", call, f"{owner}.step()"
                elif called(call) == "update_parameters" or (called(call) == "update" and "ema" in owner.lower()):
                    yield "step-in-autocast", call, f"{owner}.{called(call)}()"


def _scaler_with_bfloat16(script):
    """Search for scalers of scripts whose regions are all bfloat16."""
    if script.regions and {script.dtype(region) for region in script.regions} == {"torch.bfloat16"}:
        for call in script.scalers.values():
            if _enabled(call) is True:
                yield "scaler-with-bfloat16", call, ""


def _enabled(scaler):
    """Return the argument ``enabled`` of a call of ``GradScaler``: True, False, or a node if it is no constant."""
    given = next((each.value for each in scaler.keywords if each.arg == "enabled"), None)
    return True if given is None else getattr(given, "value", given)


def _clip_before_unscale(script):
    """Search for gradients that are clipped between a scaled backward pass and the scaler's step, still scaled."""
    for _, steps in script.source.scopes:
        scaled = None  # the step with the last scaled backward pass
        for step in steps:
            for call in step.calls():
                if _is_scaled(call, script):
                    scaled = step
                elif scaled is None or not together(scaled, step):
                    continue
                elif is_backward(call) or called(call) == "unscale_" or (called(call) == "step" and call.args):
                    scaled = None
                elif last_name(call.func) in CLIPS:
                    yield "clip-scaled-gradients", call, ""


def _is_scaled(call, script):
    """Return whether a call is ``scaler.scale(loss).backward()``, of a scaler that is not always disabled."""
    if not is_backward(call) or called(call.func.value) != "scale":
        return False
    scaler = script.scalers.get(dotted(getattr(call.func.value.func, "value", None)))
    return scaler is None or _enabled(scaler) is not False


def _update_missing(script):
    """Search for scalers that step and are never updated, nor passed on to a function that may do so."""
    steps, others = {}, set()  # name -> its first step; names of what is updated, or passed on
    for call in script.source.calls():
        owner = dotted(getattr(call.func, "value", None))
        if called(call) == "step":
            steps.setdefault(owner, call)
        others |= {owner} if called(call) == "update" else set()
        others |= {dotted(each) for each in call.args + [keyword.value for keyword in call.keywords]}
    for name in script.scalers:  # the update of an attribute may be in another file
        if "." not in name and name in steps and name not in others:
            yield "scaler-update-missing", steps[name], name


def _half_weights(script):
    """Search for models that are half when an optimizer of torch gets their params."""
    if any(each in word for word in script.words for each in _OTHERWISE):
        return
    names = script.source.names
    for _, steps in script.source.scopes:
        half = {}  # name of a model -> (step, the call that makes it half); None if it was replaced
        for step in steps:
            for call in step.calls():
                owner = dotted(getattr(call.func, "value", None))
                if owner and is_half_cast(call, names):
                    half[owner] = (step, call)
                elif owner and called(call) in _WIDER:
                    half[owner] = None
            _assign(step, half, names)
            if step.node in script.optimizers and names.of(step.node.value.func).startswith("torch.optim."):
                for name in _trained(step.node.value, half):
                    if half[name] is not None and together(half[name][0], step):
                        yield "half-weights-trained", half[name][1], name


def _trained(call, known):
    """Return which of the known models an optimizer trains: the longest name, of ``model.head.parameters()``."""
    params = [node for node in ast.walk(call) if last_name(node) in ("parameters", "named_parameters")]
    owners = {max(prefixes(dotted(node)) & set(known), key=len, default=None) for node in params}
    return sorted(owners - {None})


def _assign(step, half, names):
    """Note whether an assignment makes a model half, as ``model = Net().half().to(device)`` does, or replaces it."""
    node = step.node
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not dotted(node.targets[0]):
        return
    name, value = dotted(node.targets[0]), node.value
    while isinstance(value, ast.Call) and called(value) not in _WIDER:
        wrapped = dotted(argument(value, 0, "module"))
        if is_half_cast(value, names) or loads_half(value, names):
            half[name] = (step, value)
            return
        if half.get(wrapped) is not None:
            half[name] = half[wrapped]
            return
        value = getattr(value.func, "value", None)
    if dotted(value) != name:
        half[name] = None


_SEARCHES = (_float16_without_scaler, _in_autocast, _scaler_with_bfloat16, _clip_before_unscale, _update_missing)
_SEARCHES += (_half_weights,)
