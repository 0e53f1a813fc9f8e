"""Rules on ``amp.initialize``: ``.half()`` and wrappers before it, optimizers after it, its level and conditions."""

import ast

from ..reading.calls import INITIALIZE, argument, initialize_calls, names_in
from ..reading.flow import together
from ..reading.names import called, dotted, last_name, string
from ..reading.nodes import children
from ..reading.source import read_source
from ..rules import finding

#: The calls of ``amp.initialize`` in one function that are examined.
_MOST = 20
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "DDP")
_OPTIMIZERS = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "LBFGS", "ASGD")
_OPTIMIZERS += ("Rprop", "SparseAdam", "BertAdam", "Ranger", "Lamb", "LAMB")
_OPTIMIZERS += ("FusedAdam", "FusedSGD", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad")


def check(source):
    """Return the findings on the calls of ``amp.initialize`` in a ``Source``."""
    found = [finding("conditional-initialize", *each) for each in conditional_calls(source)]
    for _, steps in source.scopes:
        calls = [(index, step, call) for index, step in enumerate(steps) for call in step.calls()]
        calls = [each for each in calls if source.names.of_apex(each[-1].func) in INITIALIZE]
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
        yield source.problem("level-as-enabled", step.node, repr(level))


def _before(source, steps, initialize, call):
    """Yield findings on changes to the models before the call. For each model, the last change counts."""
    for model in names_in(argument(call, 0, "models")):
        for step in reversed(steps):
            if not together(step, initialize):
                continue
            done = _done_to(model, step)
            if done in ("half", "wrapped"):
                rule = "half-before-initialize" if done == "half" else "wrapped-before-initialize"
                yield source.problem(rule, step.node, model)
            if done:
                break


def _done_to(model, step):
    """Return the effect of a statement on a model: ``half``, ``wrapped``, ``made`` (again), or None."""
    targets = _targets(step.node)
    for call in step.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("half", "float"):
            owner = call.func.value
            if not call.args and (dotted(owner) == model or (model in targets and isinstance(owner, ast.Call))):
                return "half" if call.func.attr == "half" else "made"
    value = _without_moves(getattr(step.node, "value", None))
    if model in targets and isinstance(value, ast.Call):
        first = argument(value, 0, "module")
        if last_name(value.func) in _WRAPPERS and first is not None and _mentions(first, model):
            return "wrapped"
        return None if _mentions(value, model) else "made"  # `model.to(device)` returns the same model
    return "made" if model in targets else None


def _without_moves(value):
    """Return ``DataParallel(model)`` of ``DataParallel(model).cuda()``."""
    while isinstance(value, ast.Call) and isinstance(getattr(value.func, "value", None), ast.Call):
        value = value.func.value
    return value


def _mentions(node, name):
    return any(dotted(each) == name for each in ast.walk(node))


def _optimizers_made(steps):
    """Return the steps that create an optimizer, by its name: name -> [(index, step), …]."""
    made = {}
    for index, step in enumerate(steps):
        if called(getattr(step.node, "value", None)) in _OPTIMIZERS:
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
                    yield source.problem("optimizer-after-initialize", step.node, name)


def _targets(statement):
    if not isinstance(statement, ast.Assign):
        return set()
    names = (dotted(node) for target in statement.targets for node in ast.walk(target))
    return {name for name in names if name}


# -- conditions --------------------------------------------------------------------------------------------------------


def conditional_calls(source):
    """Yield (place, condition) of the calls of ``amp.initialize`` in a ``Source`` that are under a condition.

    The condition is returned as written: "if args.fp16". Conditions of calling functions are not followed, and
    ``__name__`` and names of Apex itself do not count as conditions.
    """
    calls = initialize_calls(source.nodes, source.names)
    parents = {child: node for node in source.nodes for child in children(node)} if calls else {}
    for call in calls:
        conditions, child = [], call
        while child in parents and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node = parents[child]
            if isinstance(node, ast.If) and child is not node.test and not _is_always(node.test, source.names):
                conditions.insert(0, _condition(source, node, is_else=child in node.orelse))
            child = node
        if conditions:
            yield source.place(call.lineno), " and ".join(conditions)


def conditional_calls_in(path):
    """Return what ``conditional_calls`` yields for a Python file; nothing if it cannot be read or parsed."""
    source = read_source(path)
    return list(conditional_calls(source)) if source else []


def _is_always(test, names):
    read = {name for name in map(dotted, ast.walk(test)) if name}
    return bool(read) and all(name == "__name__" or names.resolve(name) for name in read)


def _condition(source, node, is_else):
    """Return the first line of an ``if``, without its colon."""
    line = source.lines[node.lineno - 1].strip()
    line = line[2:] if line.startswith("elif") else line
    head = line.partition(" #")[0].rstrip().rstrip(":").rstrip()
    return f"else of `{head}`" if is_else else f"`{head}`"
