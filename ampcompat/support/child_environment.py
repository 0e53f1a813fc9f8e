"""``ChildEnvironment``: what a process tells the Pythons that it starts, as environment variables; without torch."""

import os
import sys
from dataclasses import dataclass, field, fields
from importlib.machinery import PathFinder
from typing import Optional

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: The folder that contains the package ``ampcompat``.
ROOT = os.path.dirname(_PACKAGE)

#: The folder that contains the package ``apex`` and its metadata.
SITE = os.path.join(_PACKAGE, "apex", "site")

#: The folder of the ``sitecustomize.py`` that reads ``device`` and ``forces_level``. Python imports such a module when
#: it starts. No other way reaches every child (spawned, forked, started by torchrun) without changing the command.
STARTUP = os.path.join(_PACKAGE, "launch", "site")

#: Variables of torch: torch.compile runs functions uncompiled.
_UNCOMPILED = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")


#: In an argument of a script, what becomes the value of ``LOCAL_RANK``, which torchrun sets.
LOCAL_RANK = "{local_rank}"


def with_local_rank(command):
    """Return a script's command for this rank: with the number of the process on its machine for ``{local_rank}``."""
    rank = os.environ.get("LOCAL_RANK", LOCAL_RANK)
    return [argument.replace(LOCAL_RANK, rank) for argument in command]


def _told(variable, read=str):
    return field(default=None, metadata={"variable": "AMPCOMPAT_" + variable, "read": read})


def _flag(text):
    return text != "0"


@dataclass
class ChildEnvironment:
    """What a child process is told; None: nothing, so that it is told what this process was told.

    The first seven replace arguments of ``amp.initialize``, the next four are what is observed of a script.

    Args:
        keep_fp32: names of layers, joined by commas, that are added to the script's.
        dtypes: low and high, such as "float32,float64", for a torch without half.
        device: what CUDA is redirected to.
        forces_level: whether the level is forced on scripts without Apex too.
        command_for_cpu: the command to recommend if CUDA is missing. The alias ``apex`` reads it too.
        has_alias: whether ``import apex`` finds ampcompat's.
        is_uncompiled: whether torch.compile compiles nothing, since calls in compiled code cannot be observed.
    """

    opt_level: Optional[str] = _told("OPT_LEVEL")
    backend: Optional[str] = _told("BACKEND")
    verbosity: Optional[int] = _told("VERBOSITY", int)
    dtypes: Optional[str] = _told("DTYPES")
    diagnose: Optional[bool] = _told("DIAGNOSE", _flag)
    store_param_remainders: Optional[bool] = _told("STORE_PARAM_REMAINDERS", _flag)
    keep_fp32: Optional[str] = _told("KEEP_FP32")
    op_stats: Optional[bool] = _told("OP_STATS", _flag)
    op_stats_file: Optional[str] = _told("OP_STATS_FILE")
    stats_every: Optional[int] = _told("STATS_EVERY", int)
    stats_file: Optional[str] = _told("STATS_FILE")
    device: Optional[str] = _told("DEVICE")
    forces_level: Optional[bool] = _told("FORCES_LEVEL", _flag)
    command_for_cpu: Optional[str] = _told("COMMAND_FOR_CPU")
    has_alias: Optional[bool] = None
    is_uncompiled: bool = False

    def variables(self):
        """Return the environment variables of what is told, without PYTHONPATH."""
        values = [(each, getattr(self, each.name)) for each in _fields()]
        found = {
            each.metadata["variable"]: str(int(value) if isinstance(value, bool) else value)
            for each, value in values
            if value is not None
        }
        found.update(dict.fromkeys(_UNCOMPILED, "1") if self.is_uncompiled else {})
        return found

    def to_env(self):
        """Return the environment variables that a child process gets in addition to those of this process."""
        found = self.variables()
        if self.has_alias is not None or self.device or self.forces_level:
            found["PYTHONPATH"] = os.pathsep.join(self._path())
        return found

    def _path(self):
        """Return the entries of PYTHONPATH: those that are needed come first, then what this process has inherited."""
        inherited = os.environ.get("PYTHONPATH")
        first = [STARTUP] if self.device or self.forces_level else []
        placed = first + ([SITE] if self.has_alias is not None else [])
        rest = [entry for entry in inherited.split(os.pathsep) if entry not in placed] if inherited else []
        if self.has_alias is not None and ROOT not in rest and _is_checkout_in_current_folder():
            rest.append(ROOT)
        return first + ([SITE] if self.has_alias else []) + rest

    @classmethod
    def from_env(cls, env=os.environ):
        """Return what this process was told, or a process with the variables ``env``."""
        given = [each for each in _fields() if env.get(each.metadata["variable"])]
        return cls(**{each.name: each.metadata["read"](env[each.metadata["variable"]]) for each in given})


def _fields():
    return [each for each in fields(ChildEnvironment) if each.metadata]


def _is_checkout_in_current_folder():
    """Return whether ``ampcompat`` is a checkout in the current folder, which a script elsewhere would not find."""
    is_here = os.path.realpath(ROOT) in map(os.path.realpath, (sys.path[0] or os.curdir, os.curdir))
    return is_here and PathFinder.find_spec("ampcompat", sys.path[1:]) is None
