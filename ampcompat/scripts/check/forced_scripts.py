"""Scripts that train without Apex: which levels can be forced on each, and with which commands."""

import re
import shlex
from typing import NamedTuple, Tuple

from ..model.loops_without_apex import LEVELS, LoopsWithoutApex
from ..model.source import is_script
from .scripts import commands_of, is_launched

#: A Python file without any of these does not train.
HINTS = re.compile(rb"\.backward\(|functorch|torch\.func|transformers|lightning|accelerate")
#: The names of Apex with which a script has its own levels.
_AMP = ("apex.amp", "apex.fp16_utils")
#: The level in the commands: the first of these that can be forced.
_SUGGESTED = ("O5", "O4", "O1", "O2", "O3", "O0")
#: How many files are read for a training loop.
_MOST = 500


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
            findings += [limit.found for each in reached for limit in each.limits]
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
    limits = {level for each in trainings for limit in each.limits for level in limit.levels}
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
