"""Rules on functions, checkpoints and subclasses, and on how a script is started: options of launchers, CUDA."""

import ast
import bisect
import re

from ...apex.package_names import REDUCTION_METHODS
from ..model.calls import ends_script
from ..model.names import called, dotted, last_name, string

_STATE_DICTS = ("apex.amp.state_dict", "apex.amp.frontend.state_dict")
_REGISTRATIONS = ("register_float_function", "register_half_function", "float_function", "disable_casts")
_DDP = ("apex.parallel.DistributedDataParallel", "apex.parallel.distributed.DistributedDataParallel")
#: A Python file with one of these uses CUDA.
_CUDA = re.compile(rb"\.cuda\(|\btorch\.cuda\.|[\"']cuda(:|[\"'])|[\"']nccl[\"']")


def binary_cross_entropy(source):
    """Return findings on ``F.binary_cross_entropy`` and ``nn.BCELoss`` of a ``Source``.

    None if the script registers ``sigmoid`` as a float32 function, or casts in the call.
    """
    if any(called(node) in _REGISTRATIONS for node in source.calls()):
        return []
    found, aliases = [], {each.local: each.name for each in source.imports if each.is_renamed}
    for call in source.calls():
        name = last_name(call.func)
        name = aliases.get(name, name)
        if name == "BCELoss" or (name == "binary_cross_entropy" and not _is_float(call.args[:1])):
            found.append(source.problem("half-binary-cross-entropy", call, name))
    return found


def checkpoints(source):
    """Return findings on calls that save an optimizer's state but not amp's: ``torch.save`` and a project's own
    ``save_checkpoint({...})``.
    """
    if any(source.names.of_apex(node) in _STATE_DICTS for node in source.nodes if isinstance(node, ast.Attribute)):
        return []
    found, assigned = [], _assigned(source.nodes)
    for call in source.calls():
        is_torch = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "torch"
        if "save" in (last_name(call.func) or "") and call.args:
            content = _value_of(call.args[0], assigned)
            content = content if is_torch or isinstance(content, ast.Dict) else None
            if content is not None and _has_optimizer(content) and not _mentions_amp(content):
                found.append(source.problem("checkpoint-without-amp", call))
    return found


def _is_float(arguments):
    """Return whether an argument is cast in the call: ``binary_cross_entropy(scores.float(), …)``."""
    return any(called(node) in ("float", "double") for node in arguments)


def _assigned(nodes):
    """Return the values that are assigned to names: name -> (lines, values), by line."""
    found = {}
    for node in sorted((each for each in nodes if isinstance(each, ast.Assign)), key=lambda each: each.lineno):
        for target in node.targets:
            if isinstance(target, ast.Name):
                lines, values = found.setdefault(target.id, ([], []))
                lines.append(node.lineno)
                values.append(node.value)
    return found


def _value_of(node, assigned):
    """Return the last value assigned to a name before it is used, if the argument is a name."""
    if not isinstance(node, ast.Name):
        return node
    lines, values = assigned.get(node.id, ([], []))
    count = bisect.bisect_right(lines, node.lineno)
    return values[count - 1] if count else None


def _has_optimizer(content):
    """Return whether an expression calls ``optimizer.state_dict()``, whatever the name of the optimizer."""
    states = (node for node in ast.walk(content) if called(node) == "state_dict")
    return any("optim" in (last_name(getattr(call.func, "value", None)) or "").lower() for call in states)


def _mentions_amp(content):
    words = (string(node) or last_name(node) or "" for node in ast.walk(content))
    return any("amp" in word.lower() or "scaler" in word.lower() for word in words)


# -- how a script is started -------------------------------------------------------------------------------------------


def uses_cuda(data):
    """Return whether the text of a Python file, as bytes, uses CUDA."""
    return _CUDA.search(data) is not None


def chooses_device(nodes):
    """Return whether a script checks for CUDA and continues without it, given the nodes of its tree.

    ``assert torch.cuda.is_available()``, and an ``if not torch.cuda.is_available():`` that ends the script, do not.
    """
    demands = set()
    for node in nodes:
        if isinstance(node, ast.Assert):
            demands |= {id(each) for each in ast.walk(node.test)}
        elif isinstance(node, ast.If) and _is_not(node.test) and not node.orelse and ends_script(node.body[-1]):
            demands |= {id(each) for each in ast.walk(node.test)}
    return any(id(node) not in demands and _asks_for_cuda(node) for node in nodes)


def _asks_for_cuda(node):
    if not isinstance(node, ast.Call):
        return False
    name = dotted(node.func) or ""
    return name.endswith("cuda.is_available") or name.endswith("cuda.device_count")


def _is_not(test):
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def launching(source):
    """Yield findings on options that torch's launchers do not pass, and on refused subclasses."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and any(source.names.of_apex(base) in _DDP for base in node.bases):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in REDUCTION_METHODS:
                    yield source.problem("ddp-subclass", method, node.name + "." + method.name)
        if called(node) == "add_argument":
            texts = {string(each) for each in ast.walk(node)}
            if "--local_rank" in texts and not texts & {"--local-rank", "LOCAL_RANK"}:
                yield source.problem("local-rank", node)
