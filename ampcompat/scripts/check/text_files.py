"""Uses of Apex in files that are not Python: requirements, setup files, shell scripts, Dockerfiles."""

import ast
import re

from ..reading.apex_names_used import use
from ..reading.calls import levels_in_command
from ..reading.names import string
from ..reading.rules import RequestedLevel, finding

# Each of these takes time proportional to the text: no part can match what the next part matches too.
_REQUIRED = re.compile(r"(?:- *)?[\"']?apex(?:\[[\w,]*\])?(?:$|\s*(?:[=<>~!]=|[<>]|=[\"' ]*[\^\d*]))")
_PIP, _PIP_APEX = re.compile(r"\bpip3?\s+install\b"), re.compile(r"\s[\"']?apex(?=[=<>~!\"'\s]|$)")
_FROM_SOURCE = re.compile(r"(github\.com[/:]\w+/apex)|(--cuda_ext)|(--cpp_ext)", re.IGNORECASE)
_CONDA, _CONDA_APEX = re.compile(r"\b(conda|mamba)\s+install\b"), re.compile(r"\b(nvidia-)?apex\b")
_MODULE = re.compile(r"-m\s+(apex(?:\.\w+)+)")
_LAUNCHERS = re.compile(r"torch\.distributed\.(launch|run)\b|\btorchrun\b|apex\.parallel\.multiproc")
_WORD, _ENDING = re.compile(r"[\w./-]+"), re.compile(r"\.py\b")


def required_in_setup(source):
    """Return findings on the requirement ``apex`` in the strings of a ``setup.py``, given as a ``Source``."""
    strings = (node for node in source.nodes if isinstance(node, ast.expr) and string(node))
    if any(each.full_name == "apex" for each in source.imports):
        return []
    return [source.problem("web-apex", node) for node in strings if _is_required(string(node))]


class TextFile:
    """The findings in the lines of one file, or of a notebook's shell commands.

    Attributes:
        uses: ``Use`` records of modules that are run by name.
        findings: the findings.
        levels: the levels that commands pass.
        launched: scripts that are started in several processes.
    """

    def __init__(self, lines, is_shell):
        self.uses, self.findings, self.levels, self.launched = [], [], [], set()
        for place, line in _joined(lines):
            code = line.partition("#")[0] if not line.lstrip().startswith("#") else ""
            if is_shell:
                self._command(place, code)
            if _FROM_SOURCE.search(line if not is_shell else code) or _has_both(code, _CONDA, _CONDA_APEX):
                self.findings.append(finding("builds-apex", place))
            elif any(_has_both(part, _PIP, _PIP_APEX) for part in re.split("[;&|]", code)) or (
                not is_shell and _is_required(line)
            ):
                self.findings.append(finding("web-apex", place))

    def _command(self, place, line):
        self.uses += [use(place, name) for name in _MODULE.findall(line)]
        self.levels += [RequestedLevel(place, level, "passed in a command") for level in levels_in_command(line)]
        launcher = _LAUNCHERS.search(line)
        if launcher:
            scripts = (_script(each.group()) for each in _WORD.finditer(line, launcher.end()))
            self.launched |= {next(filter(None, scripts), None)} - {None}


def _is_required(line):
    """Return whether a requirement, as in a file of requirements, is ``apex``."""
    return bool(_REQUIRED.match(line.partition("#")[0].strip().rstrip(" \t\"',")))


def _has_both(text, first, second):
    """Return whether a text has a match of ``first``, and after it one of ``second``."""
    found = first.search(text)
    return found is not None and second.search(text, found.end()) is not None


def _script(word):
    """Return the part of a word that ends in ``.py``, or None."""
    ends = [each.end() for each in _ENDING.finditer(word)]
    return word[: ends[-1]] if ends and ends[-1] > len(".py") else None


def _joined(lines):
    """Yield (place of the first line, text), with lines that end in a backslash joined with the next."""
    first, parts = None, []
    for place, line in lines:
        first = place if first is None else first
        if line.rstrip().endswith("\\"):
            parts.append(line.rstrip()[:-1])
            continue
        yield first, " ".join(parts + [line])
        first, parts = None, []
    if parts:
        yield first, " ".join(parts)
