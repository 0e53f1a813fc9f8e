"""Problems around ``amp.initialize``: ``.half()`` and wrappers before it, optimizers after it, its level."""

import ast

from ...model.bindings import dotted, last_name, string
from ...model.calls import INITIALIZE, argument, names_in
from ...model.flow import together
from ...model.rule_texts import finding

#: The calls of ``amp.initialize`` in one function that are examined.
_MOST = 20
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "DDP")
_OPTIMIZERS = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "LBFGS", "ASGD")
_OPTIMIZERS += ("Rprop", "SparseAdam", "BertAdam", "Ranger", "Lamb", "LAMB")
_OPTIMIZERS += ("FusedAdam", "FusedSGD", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad")


def check(source, bindings):
    """Return the findings around the calls of ``amp.initialize`` in a ``Source``."""
    found = []
    for _, steps in source.scopes:
        calls = [(index, step, call) for index, step in enumerate(steps) for call in step.calls()]
        calls = [each for each in calls if bindings.full_name(each[-1].func) in INITIALIZE]
        made = _optimizers_made(steps) if calls else {}
        for index, step, call in calls[:_MOST]:
            found += _level(source, step, call)
            found += _before(source, steps[:index], step, call)
            found += _after(source, calls, made, index, call)
    return sorted(set(found))


def _level(source, step, call):
    """Yield a finding on ``initialize(model, optimizer, "O2")``, which computes at O1."""
    enabled = argument(call, 2, "enabled")
    level = string(enabled) if argument(call, 3, "opt_level") is None else None
    if level not in (None, "O1"):
        yield finding("level-as-enabled", source.place(step.node.lineno), repr(level))


def _before(source, steps, initialize, call):
    """Yield findings on changes to the models before the call. For each model, the last change counts."""
    for model in names_in(argument(call, 0, "models")):
        for step in reversed(steps):
            if not together(step, initialize):
                continue
            done = _done_to(model, step)
            if done in ("half", "wrapped"):
                rule = "half-before-initialize" if done == "half" else "wrapped-before-initialize"
                yield finding(rule, source.place(step.node.lineno), model)
            if done:
                break


def _done_to(model, step):
    """Return the effect of a statement on a model: ``half``, ``wrapped``, ``made`` (again), or None."""
    targets = _targets(step.node)
    for call in step.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("half", "float"):
            is_its_own = dotted(call.func.value) == model or (
                model in targets and isinstance(call.func.value, ast.Call)
            )
            if is_its_own and not call.args:
                return "half" if call.func.attr == "half" else "made"
    value = _without_moves(getattr(step.node, "value", None))
    if model in targets and isinstance(value, ast.Call):
        return (
            "wrapped"
            if last_name(value.func) in _WRAPPERS and _is_first_argument(model, value)
            else _made(model, value)
        )
    return "made" if model in targets else None


def _without_moves(value):
    """Return ``DataParallel(model)`` of ``DataParallel(model).cuda()``."""
    while (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Call)
    ):
        value = value.func.value
    return value


def _made(model, call):
    """Return ``made`` if a call creates another model; None if it returns the same one: ``model.to(device)``."""
    return None if any(dotted(node) == model for node in ast.walk(call)) else "made"


def _is_first_argument(model, call):
    first = argument(call, 0, "module")
    return first is not None and any(dotted(node) == model for node in ast.walk(first))


def _optimizers_made(steps):
    """Return the steps that create an optimizer, by its name: name -> [(index, step), …]."""
    made = {}
    for index, step in enumerate(steps):
        if last_name(getattr(getattr(step.node, "value", None), "func", None)) in _OPTIMIZERS:
            for name in _targets(step.node):
                made.setdefault(name, []).append((index, step))
    return made


def _after(source, calls, made, place, call):
    """Yield a finding if the script creates the optimizer again in the same scope and does not initialize it again.

    Args:
        calls: (index, step, call) of the scope's calls of ``amp.initialize``.
        made: see ``_optimizers_made``.
        place: the index of the step of ``call``.
    """
    initialize = next(step for index, step, _ in calls if index == place)
    for name in names_in(argument(call, 1, "optimizers")):
        for index, step in made.get(name, ()):
            if index > place and together(step, initialize):
                if not any(later > index and together(after, step) for later, after, _ in reversed(calls)):
                    yield finding("optimizer-after-initialize", source.place(step.node.lineno), name)


def _targets(statement):
    if not isinstance(statement, ast.Assign):
        return set()
    names = (dotted(node) for target in statement.targets for node in ast.walk(target))
    return {name for name in names if name}
