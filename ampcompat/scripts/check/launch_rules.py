"""How a script is started: options of launchers, classes that replace DistributedDataParallel's methods, and CUDA."""

import ast
import re

from ...apex.package_names import REDUCTION_METHODS
from ..reading.calls import ends_script
from ..reading.names import called, dotted, string

_DDP = ("apex.parallel.DistributedDataParallel", "apex.parallel.distributed.DistributedDataParallel")
#: A Python file with one of these uses CUDA.
_CUDA = re.compile(rb"\.cuda\(|\btorch\.cuda\.|[\"']cuda(:|[\"'])|[\"']nccl[\"']")


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
