"""What matters when a script is started: whether it uses CUDA, options that launchers pass, and refused subclasses."""

import ast
import re

from ..apex.reduction_methods import REDUCTION_METHODS
from .bindings import last_name, string
from .rules import finding

#: A Python file with one of these uses CUDA.
_CUDA = re.compile(rb"\.cuda\(|\btorch\.cuda\.|[\"']cuda(:|[\"'])|[\"']nccl[\"']")


def uses_cuda(data):
    """Return whether the text of a Python file, as bytes, uses CUDA."""
    return _CUDA.search(data) is not None


_DDP = ("apex.parallel.DistributedDataParallel", "apex.parallel.distributed.DistributedDataParallel")


def check(source, bindings):
    """Yield findings on options that the launchers of torch do not pass, and on refused subclasses."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and any(bindings.full_name(base) in _DDP for base in node.bases):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in REDUCTION_METHODS:
                    yield finding("ddp-subclass", source.place(method.lineno), node.name + "." + method.name)
        if isinstance(node, ast.Call) and last_name(node.func) == "add_argument":
            texts = {string(each) for each in ast.walk(node)}
            if "--local_rank" in texts and not texts & {"--local-rank", "LOCAL_RANK"}:
                yield finding("local-rank", source.place(node.lineno))
