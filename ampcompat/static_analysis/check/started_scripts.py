"""Which files of a code base are started, the command that runs each, the levels that can be forced on it, and rules
on how it is started: options of launchers, classes that replace DistributedDataParallel's methods, and CUDA.
"""

import ast
import os
import re
import shlex
from typing import NamedTuple, Tuple

from ...apex.package_names import REDUCTION_METHODS
from ..reading.calls import ends_script
from ..reading.loops_without_apex import LEVELS, LoopsWithoutApex
from ..reading.names import called, dotted, string
from ..reading.source import is_script

#: How many files without Apex are read, to check whether they import one with it, or train.
_MOST = 500
#: A Python file without any of these does not train.
HINTS = re.compile(rb"\.backward\(|functorch|torch\.func|transformers|lightning|accelerate")
#: The names of Apex with which a script has its own levels.
_AMP = ("apex.amp", "apex.fp16_utils")
#: The level in the commands: the first of these that can be forced.
_SUGGESTED = ("O5", "O4", "O1", "O2", "O3", "O0")


class Script(NamedTuple):
    """A file that is started.

    Attributes:
        path: the file.
        command: how it runs with ampcompat.
        without_gpu: how it runs on a machine without a GPU; empty for notebooks, if nothing uses CUDA, and if CUDA is
            used only if available.
    """

    path: str
    command: str
    without_gpu: str


def find_scripts(project, imports):
    """Return the scripts and notebooks that use Apex; if there are none, those that import a file that does."""
    users = {use.place.path for use in project.report.uses}
    direct = [path for path in sorted(users) if _is_started(project, path)]
    if users and not any(not path.endswith(".ipynb") for path in direct):
        direct += [path for path in _importers(project, imports, users) if path not in direct]
    return [_script(path, project, imports) for path in direct]


def _is_started(project, path):
    if path not in project.sources:
        return False
    source = project.sources[path]
    return source.is_notebook or is_script(source.tree) or is_launched(path, project.launched)


def _importers(project, imports, users):
    """Return files with a main guard that import a file that uses Apex."""
    found = []
    started = [path for path in sorted(project.sources) if _is_started(project, path)]
    for path in started + sorted(project.mains)[:_MOST]:
        source = project.source(path)
        if source is not None and imports.imported_files(source) & users:
            found.append(path)
    return found


def is_launched(path, launched):
    """Return whether a file is one of those that launchers start, by the end of its path."""
    return any(os.path.normpath(path).endswith(os.path.normpath(each)) for each in launched)


def _script(path, project, imports):
    if path.endswith(".ipynb"):
        return Script(path, f"import ampcompat.as_apex  # in the first cell of {path}", "")
    return Script(path, *commands_of(path, project, imports))


def commands_of(path, project, imports, options=""):
    """Return the command that runs a script, and the one for a machine without a GPU (see ``Script``).

    Args:
        options: options of ``run``, each followed by a space.
    """
    launcher = "torchrun --nproc_per_node N -m " if is_launched(path, project.launched) else ""
    command = launcher + "ampcompat run {}{} ARGS"
    commands = [command.format(options + option, shlex.quote(path)) for option in ("", "--device cpu ")]
    needs_cuda = project.uses_cuda and not _chooses_device(path, project, imports)
    return commands[0], commands[1] if needs_cuda else ""


def _chooses_device(path, project, imports):
    """Return whether a script, or a file that it imports, runs without CUDA too."""
    source = project.source(path)
    sources = [source] + [project.source(each) for each in sorted(imports.imported_files(source))] if source else []
    return any(chooses_device(each.nodes) for each in sources if each is not None)


# -- scripts without Apex ----------------------------------------------------------------------------------------------


class ForcedScript(NamedTuple):
    """A script that trains without Apex.

    Attributes:
        path: the file.
        levels: the levels that can be forced, as a tuple; empty if none can.
        trainer: the full name of the trainer class that it uses, or "".
        command: how it runs at a level; "" if none can be forced.
        without_gpu: how it runs on a machine without a GPU, as in ``Script``.
        compare: how ``ab`` compares levels.
        keep: how ``migrate`` writes the level into it; "" if a trainer runs the backward pass.
    """

    path: str
    levels: Tuple
    trainer: str
    command: str
    without_gpu: str
    compare: str
    keep: str


def find_forced_scripts(project, imports):
    """Return (the ``ForcedScript`` records of a code base, the findings on them).

    Both are empty if a file uses ``amp``, Apex's or ampcompat's, since the scripts then already have levels.

    Args:
        project: the files that ``check`` has read.
        imports: its ``ProjectImports``.
    """
    has_amp = any(use.name == name or use.name.startswith(name + ".") for use in project.report.uses for name in _AMP)
    if has_amp or project.imports_ampcompat:
        return [], []
    sources = {path: project.source(path) for path in project.training[:_MOST]}
    loops = {path: _loops(source) for path, source in sources.items() if source is not None}
    trainings = {path: each for path, each in loops.items() if each is not None and each.trains}
    scripts, findings = [], []
    for path in sorted(set(trainings).union(project.mains[:_MOST])) if trainings else ():
        sources[path] = source = sources.get(path) or project.source(path)
        if source is None or source.is_notebook or not (is_script(source.tree) or is_launched(path, project.launched)):
            continue
        reached = [trainings[each] for each in _reached(path, project, imports, sources) if each in trainings]
        if reached:
            scripts.append(_forced(path, reached, project, imports))
            findings += [problem for each in reached for problem, _ in each.limits]
    return scripts, findings


def _loops(source):
    """Return the ``LoopsWithoutApex`` of a ``Source``; None if it is nested too deeply (thousands of `elif`)."""
    try:
        return LoopsWithoutApex(source)
    except RecursionError:
        return None


def _reached(path, project, imports, sources):
    """Return a script and the files of the code base that it imports, directly or not, as a sorted list."""
    seen, waiting = set(), [path]
    while waiting and len(seen) < _MOST:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        sources[file] = source = sources.get(file) or project.source(file)
        waiting += sorted(imports.imported_files(source)) if source is not None else []
    return sorted(seen)


def _forced(path, trainings, project, imports):
    limits = {level for each in trainings for _, levels in each.limits for level in levels}
    levels = tuple(level for level in LEVELS if level not in limits)
    trainer = next((name for each in trainings for name in each.trainers), "")
    if not levels:
        return ForcedScript(path, levels, trainer, "", "", "", "")
    level = next(each for each in _SUGGESTED if each in levels)
    quoted = shlex.quote(path)
    compared = ",".join(each for each in ("O0", "O1", "O5") if each in levels)
    command, without_gpu = commands_of(path, project, imports, f"--opt-level {level} ")
    compare = f"ampcompat ab --levels {compared} {quoted} ARGS"
    keep = "" if trainer else f"ampcompat migrate --to-level {level} {quoted}"
    return ForcedScript(path, levels, trainer, command, without_gpu, compare, keep)


_DDP = ("apex.parallel.DistributedDataParallel", "apex.parallel.distributed.DistributedDataParallel")
#: A Python file with one of these uses CUDA.
CUDA = re.compile(rb"\.cuda\(|\btorch\.cuda\.|[\"']cuda(:|[\"'])|[\"']nccl[\"']")


def chooses_device(nodes):
    """Return whether a script checks for CUDA and continues without it, given the nodes of its tree.

    ``assert torch.cuda.is_available()``, and an ``if not torch.cuda.is_available():`` that ends the script, do not.
    """
    demands = set()
    for node in nodes:
        if isinstance(node, ast.Assert):
            demands |= {id(each) for each in ast.walk(node.test)}
        elif isinstance(node, ast.If) and not node.orelse and ends_script(node.body[-1]):
            is_negated = isinstance(getattr(node.test, "op", None), ast.Not)
            demands |= {id(each) for each in ast.walk(node.test)} if is_negated else set()
    return any(id(node) not in demands and _asks_for_cuda(node) for node in nodes)


def _asks_for_cuda(node):
    if not isinstance(node, ast.Call):
        return False
    name = dotted(node.func) or ""
    return name.endswith("cuda.is_available") or name.endswith("cuda.device_count")


def launching(source):
    """Yield findings on options that torch's launchers do not pass, and on refused subclasses."""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and any(source.names.of_apex(base) in _DDP for base in node.bases):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in REDUCTION_METHODS:
                    yield source.problem("ddp-subclass", method, node.name + "." + method.name)
        elif isinstance(node, ast.Call) and called(node) == "add_argument":
            texts = {string(each) for each in ast.walk(node)}
            if "--local_rank" in texts and not texts & {"--local-rank", "LOCAL_RANK"}:
                yield source.problem("local-rank", node)
