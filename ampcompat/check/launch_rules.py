"""What matters when a script is started: whether it uses CUDA, and options that launchers pass."""

import ast
import re

from .bindings import last_name, string
from .rules import finding

#: A Python file with one of these uses CUDA.
_CUDA = re.compile(rb"\.cuda\(|\btorch\.cuda\.|[\"']cuda(:|[\"'])|[\"']nccl[\"']")


def uses_cuda(data):
    """Return whether the text of a Python file, as bytes, uses CUDA."""
    return _CUDA.search(data) is not None


def check(source):
    """Yield findings on options of the script that the launchers of torch do not pass."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and last_name(node.func) == "add_argument":
            texts = {string(each) for each in ast.walk(node)}
            if "--local_rank" in texts and not texts & {"--local-rank", "LOCAL_RANK"}:
                yield finding("local-rank", source.place(node.lineno))
