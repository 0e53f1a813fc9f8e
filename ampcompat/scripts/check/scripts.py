"""Which files of a code base are started, and the command that runs each."""

import os
import shlex
from typing import NamedTuple

from ..model.source import is_script
from .rule_searches.launching import chooses_device

#: How many files without Apex are read to check whether they import one with it.
_MOST_MAINS = 500


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
    for path in started + sorted(project.mains)[:_MOST_MAINS]:
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
