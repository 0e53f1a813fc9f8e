"""Read a whole code base, and collect its uses of Apex and the problems with them."""

import os
import re

from ...errors import AmpError
from ...support import files
from ..reading import code_files
from ..reading.alias_names import EXTENSIONS
from ..reading.apex_names_used import use, uses
from ..reading.calls import UNKNOWN, asked_levels, default_levels, initialize_calls, levels_in_command
from ..reading.imports import ProjectImports
from ..reading.loops_without_apex import AMPCOMPAT
from ..reading.names import Names
from ..reading.source import Source
from ..rules import ERROR, NOTE, REFUSED, RULES, WARNING, Broken, RequestedLevel, SourcePlace, finding
from . import initialize_rules, scale_loss_rules, started_scripts, torch_amp_rules
from .check_report import CheckReport

#: A Python file without any of these does not use Apex, not even through another file of the project.
_HINTS = re.compile(
    r"apex|scale_loss|master_params|\b(amp|{})\b|[\"']O[0-5][\"']".format(
        "|".join(sorted(EXTENSIONS) + ["amp_C"])
    ).encode()
)
_WORD = re.compile(r"(?<![a-z])apex(?![a-z])", re.IGNORECASE)
_MASTERS, _CASTS = {"O2", "O5"}, {"O1", "O4"}
#: The severity of a refused name, by ``Use.fallback``; the worst comes first.
_SEVERITIES, _RANKS = {"": ERROR, "function": WARNING, "try": NOTE}, ("", "function", "try")
_FIXED = ("written in the call", "Apex's default")


def check(paths, progress=None, largest=files.LARGEST):
    """Read the files below the paths and return a ``CheckReport``.

    Args:
        paths: files and folders.
        progress: called with (files read, total files).
        largest: bytes of the largest file that is searched; of a notebook, its code counts.
    """
    project = _Project(list(code_files.walk(paths)), largest)
    for number, (path, kind) in enumerate(project.files, 1):
        project.read(path, kind)
        if progress is not None:
            progress(number, len(project.files))
    project.analyse()
    return project.report


class _Project:
    """The files of a code base.

    Attributes:
        sources: path -> ``Source`` of files that may use Apex.
        mains: Python files with ``if __name__ == "__main__"`` that do not.
        training: Python files that may train.
        imports_ampcompat: whether one imports ampcompat by its own name.
        launched: files that a shell script starts with a launcher.
        uses_cuda: whether a Python file uses CUDA.
        report: what was found.
    """

    def __init__(self, found, largest):
        self.files, self._largest = found, largest
        self.sources, self.mains, self.training, self.launched = {}, [], [], set()
        self.uses_cuda = self.imports_ampcompat = False
        self.report = CheckReport(len(found))
        self.copies = {os.path.dirname(path) for path, _ in found if _is_apex_package(path)}

    def read(self, path, kind):
        """Read one file; keep its ``Source`` if it may use Apex."""
        if any(path.startswith(folder + os.sep) for folder in self.copies):
            return
        try:
            data = files.read(path)
        except AmpError as error:
            self.report.broken.append(Broken(SourcePlace(path, 1), str(error), False))
            return
        if kind == code_files.PYTHON:
            self.uses_cuda = self.uses_cuda or bool(started_scripts.CUDA.search(data))
            self.training += [path] if started_scripts.HINTS.search(data) else []
            self.imports_ampcompat = self.imports_ampcompat or bool(AMPCOMPAT.search(data))
        if kind == code_files.SHELL:
            if (b"apex" in data.lower() or b"torch" in data) and not self._is_too_large(path, data, kind):
                lines = enumerate(code_files.decode(data).split("\n"), 1)
                self._commands([(SourcePlace(path, at), line) for at, line in lines])
        elif _HINTS.search(data):
            if not self._is_too_large(path, data, kind):
                self._python(Source(path, data, kind))
        elif kind == code_files.NOTEBOOK:
            self._look_for_damage(path, data)
        elif b"__main__" in data and kind == code_files.PYTHON:
            self.mains.append(path)

    def _is_too_large(self, path, data, kind):
        """Return whether a file would take long to search, and report it."""
        if len(data) <= self._largest or _code_size(data, kind) <= self._largest:
            return False
        reason = f"it has more than {files.in_mebibytes(self._largest)} MiB; --max-size allows more"
        self._add_broken([Broken(SourcePlace(path, 1), reason, bool(_WORD.search(code_files.decode(data))))])
        return True

    def _look_for_damage(self, path, data):
        """Report a notebook that cannot be read, even if Apex is not mentioned in it."""
        try:
            code_files.code_cells(code_files.decode(data))
        except code_files.NotANotebook as error:
            self.report.broken.append(Broken(SourcePlace(path, 1), str(error), False))

    def _python(self, source):
        self.sources[source.path] = source
        self._add_broken(source.broken)
        self._commands(source.shell)

    def _add_broken(self, broken):
        self.report.broken += broken
        for each in broken:
            if each.mentions_apex:
                self.report.findings.append(finding("broken-file", each.place, each.reason))

    def _commands(self, lines):
        """Read a shell script, or a notebook's shell commands: levels, modules, and what launchers start."""
        for place, line in _joined(lines):
            line = line.partition("#")[0]
            self.report.uses += [use(place, name) for name in _MODULE.findall(line)]
            self.report.levels += [
                RequestedLevel(place, level, "passed in a command") for level in levels_in_command(line)
            ]
            launcher = _LAUNCHERS.search(line)
            if launcher:
                scripts = (_script(each.group()) for each in _ARGUMENT.finditer(line, launcher.end()))
                self.launched |= {next(filter(None, scripts), None)} - {None}

    def analyse(self):
        """Find uses, levels and problems, and complete the report."""
        imports = ProjectImports(path for path, kind in self.files if kind == code_files.PYTHON)
        for _ in range(2):  # a name may be re-exported once more by a package
            exported = {path: source.names.apex for path, source in self.sources.items()}
            for source in self.sources.values():
                inherited = imports.inherited(source, exported)
                if inherited:
                    source.names = Names(source.nodes, inherited)
        defaults = {}
        for source in self.sources.values():
            for name, level in default_levels(source.nodes):
                defaults.setdefault(name, set()).add(level)
        asked = {path: asked_levels(source, defaults) for path, source in self.sources.items()}
        everywhere = [level for levels in asked.values() for level in levels] or [RequestedLevel(None, UNKNOWN, "")]
        for path, source in self.sources.items():
            self.report.levels += asked[path]
            try:
                self._analyse_file(source, asked[path] or everywhere)
            except RecursionError:  # thousands of `elif` or of operators in one expression
                reason = "nested too deeply to search for problems"
                self.report.broken.append(Broken(SourcePlace(path, 1), reason, True))
        self._binary_cross_entropy(imports, asked)
        self.report.scripts = started_scripts.find_scripts(self, imports)
        self._copies_of_apex()
        self._torch_amp()
        self.report.forced, limits = started_scripts.find_forced_scripts(self, imports)
        self.report.findings += limits
        self.report.finish()

    def _analyse_file(self, source, levels):
        found = uses(source)
        self.report.uses += found
        self.report.findings += _not_carried(found)
        self.report.findings += initialize_rules.check(source)
        self.report.findings += started_scripts.launching(source)
        self.report.findings += scale_loss_rules.check(source, _may_be(levels, _MASTERS))
        if any(use.name in ("apex.amp.initialize", "apex.amp.scale_loss") for use in found):
            self.report.findings += scale_loss_rules.checkpoints(source)

    def _binary_cross_entropy(self, imports, asked):
        """Search the files that call ``amp.initialize``, and the files of the project that they import."""
        if any(use.name.endswith("register_float_function") for use in self.report.uses):
            return
        reached = set()
        for path, source in self.sources.items():
            if initialize_calls(source.nodes, source.names) and _may_be(asked[path], _CASTS):
                reached |= {path} | imports.imported_files(source)
        for path in sorted(reached):
            source = self.source(path)
            if source is not None:
                self.report.findings += scale_loss_rules.binary_cross_entropy(source)

    def _torch_amp(self):
        """Search the files that train without Apex."""
        with_amp = {use.place.path for use in self.report.uses if use.name.startswith("apex.amp")}
        for path in [each for each in self.training if each not in with_amp]:
            source = self.source(path)
            if source is not None and any(hint in line for line in source.lines for hint in torch_amp_rules.HINTS):
                try:
                    self.report.findings += torch_amp_rules.check(source)
                except RecursionError:  # thousands of `elif` or of operators in one expression
                    continue

    def source(self, path):
        """Return the ``Source`` of a Python file, read now if it was not before; None if it is not to be searched."""
        if path not in self.sources:
            try:
                data = files.read(path)
            except AmpError:
                return None
            return Source(path, data) if len(data) <= self._largest else None
        return self.sources[path]

    def _copies_of_apex(self):
        """Report folders named ``apex``: an error if a script that uses Apex is next to one."""
        beside = {os.path.dirname(use.place.path) for use in self.report.uses}
        for folder in sorted(self.copies):
            severity = None if os.path.dirname(folder) in beside else WARNING
            place = SourcePlace(os.path.join(folder, "__init__.py"), 1)
            self.report.findings.append(finding("apex-folder", place, severity=severity))


def _code_size(data, kind):
    """Return the bytes of a file; the characters of a notebook's code, which may hold large images besides."""
    if kind != code_files.NOTEBOOK:
        return len(data)
    try:
        return sum(len(cell.python) for cell in code_files.code_cells(code_files.decode(data)))
    except code_files.NotANotebook:
        return 0


def _is_apex_package(path):
    return path.endswith(os.path.join("apex", "__init__.py")) and os.path.basename(os.path.dirname(path)) == "apex"


def _may_be(levels, wanted):
    """Return whether one of the levels is, or may be set to, one of the given ones."""
    return any(each.level in wanted or each.source not in _FIXED for each in levels)


def _not_carried(found):
    """Return one finding per file and refused part of Apex, with the place of its first use."""
    first = {}
    for used in found:
        if used.becomes == REFUSED:
            part = ".".join(used.name.split(".")[:3])
            if part not in first or _RANKS.index(used.fallback) < _RANKS.index(first[part].fallback):
                first[part] = used
    rule = RULES["not-carried"]
    return [
        finding("not-carried", used.place, severity=_SEVERITIES[used.fallback])._replace(
            message=f"{used.name}: {rule.title}; {used.advice}."
        )
        for used in first.values()
    ]


# Each of these takes time proportional to the text: no part can match what the next part matches too.
_MODULE = re.compile(r"-m\s+(apex(?:\.\w+)+)")
_LAUNCHERS = re.compile(r"torch\.distributed\.(launch|run)\b|\btorchrun\b|apex\.parallel\.multiproc")
_ARGUMENT, _ENDING = re.compile(r"[\w./-]+"), re.compile(r"\.py\b")


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
