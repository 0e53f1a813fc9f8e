"""``PlannedRun``: one run of a series, done by one process or cluster job independently of all others."""

import hashlib
import os
import sys
import time
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from typing import Dict, List, Optional

from ..errors import AmpError
from ..static_analysis.reading.source import declared_options
from ..support.child_environment import ChildEnvironment
from .report_data import label_of

#: The placeholder in the script's arguments that each run replaces by its name.
PLACEHOLDER = "{run}"

#: Options of a run that change what is printed, but not what is recorded.
PRINTING = ("verbosity",)


@dataclass
class PlannedRun:
    """What a child process runs, and as which run of the report.

    Args:
        level: the row of the report: an opt level, or the name of a variant.
        repeat: its number among the runs of this level, each with a different seed.
        command: the script and its arguments, or ``["-m", module, …]``; empty for a function.
        opt_level: the level to force, or None for the script's own.
        seed, steps: as for ``compare``.
        options: keyword arguments of ``forced_run.RunOptions``.
        environment: environment variables.
        python: another interpreter, or None for this one.
        launcher: the command that starts Python processes, such as torchrun's; empty for one process.
        device: what CUDA is redirected to, as by ``run --device``, or None.
        has_alias: whether ``import apex`` means ampcompat's in the script.
        timeout: seconds after which the run is ended, or None.
        folder: the working directory of the script; None is that of this process.
        since: when the series began, as ``time.time()``: files that are older are kept.
    """

    level: str
    command: List[str]
    repeat: int = 0
    opt_level: Optional[str] = None
    seed: int = 0
    steps: Optional[int] = None
    options: Dict[str, object] = field(default_factory=dict)
    environment: Dict[str, str] = field(default_factory=dict)
    python: Optional[str] = None
    launcher: List[str] = field(default_factory=list)
    device: Optional[str] = None
    has_alias: bool = True
    timeout: Optional[float] = None
    folder: Optional[str] = None
    since: float = field(default_factory=time.time)

    @property
    def label(self):
        """The run's display name."""
        return label_of(self.level, self.repeat)

    @property
    def name(self):
        """The run's name in file names."""
        return self.label.replace(" ", "-")

    def identity(self):
        """Return what must be equal for a recorded run to be this run; torch and the device are known when it runs."""
        folder = self.folder or os.getcwd()
        return {
            "script": _digest(script_file(self.command, folder)) if self.command else None,
            "arguments": self.command[2:] if self.command[:1] == ["-m"] else self.command[1:],
            "level": self.opt_level,
            "options": {name: value for name, value in sorted(self.options.items()) if name not in PRINTING},
            "environment": {**self.environment, **ChildEnvironment(device=self.device).variables()},
            "launcher": self.launcher,
            "seed": self.seed,
            "repeat": self.repeat,
            "steps": self.steps,
            "interpreter": self.python or sys.executable,
        }


def check_identity(found, source):
    """Raise one error that lists the differences between recorded runs and those of a command.

    Args:
        found: ``[(label, recorded identity, expected identity), …]``.
        source: the file of the recorded runs, for the message.
    """
    told = {}  # (what differs, recorded, expected) -> the runs in which it does
    for label, recorded, expected in found:
        for name in expected:
            if recorded.get(name) != expected[name]:
                texts = _shown(name, recorded.get(name)), _shown(name, expected[name])
                told.setdefault((name,) + texts, []).append(label)
    if told:
        parts = ["{} was {}, is {} ({})".format(*(key + (", ".join(labels),))) for key, labels in told.items()]
        message = "{} has runs that this command would not repeat: {}. Repeat the command that made them, or choose "
        raise AmpError((message + "another file.").format(source, "; ".join(parts)))


def _shown(name, value):
    return str(value)[:8] if name == "script" else repr(value)


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def own_files(command, paths):
    """Return the argument with which each run writes its own files instead of some of ``paths``, which are absolute.

    It has the script's own option if one has such a path, or the beginning of it, as its value or default; otherwise
    the argument that is such a path.
    """
    words = [each.split("=", 1) for each in command[1:]]
    given = [(word[0], (word[1:] or after)[0]) for word, after in zip(words, words[1:] + [[""]])]
    for option, value in given + _defaults(command):
        start = os.path.abspath(value or "")
        if option.startswith("--") and (value or "").strip("./") and any(path.startswith(start) for path in paths):
            return f"{option} 'runs/{PLACEHOLDER}/{os.path.basename(start)}'"
    for value in command[1:]:
        if os.path.abspath(value) in paths:
            return f"'runs/{PLACEHOLDER}/{os.path.basename(value)}' in place of {value}"
    return f"OPTION 'runs/{PLACEHOLDER}/{os.path.basename(paths[0])}', with the script's option that names the file"


def _defaults(command):
    """Return ``declared_options`` of the script of a command."""
    try:
        return declared_options(script_file(command, os.getcwd()))
    except AmpError:  # there is no such module
        return []


def script_file(command, folder):
    """Return the file that Python runs as ``__main__``; a module is found without importing its package."""
    if command[0] != "-m":
        path = os.path.join(folder, command[0])
    else:
        search = [folder] + sys.path
        for part in command[1].split("."):
            spec = PathFinder.find_spec(part, search)
            if spec is None:
                raise AmpError(f"no module named {command[1]!r}.")
            search, path = spec.submodule_search_locations, spec.origin
        path = os.path.dirname(path) if search is not None else path
    return os.path.join(path, "__main__.py") if os.path.isdir(path) else path
