"""Find the files of a code base and read them, also the code cells of Jupyter notebooks."""

import json
import os
import re
from typing import NamedTuple

#: Folders without code of the project.
SKIPPED = set(".git .hg .svn .tox .nox .venv venv .eggs .ipynb_checkpoints .mypy_cache .pytest_cache".split())
SKIPPED |= {"__pycache__", "node_modules", "site-packages"}

PYTHON, NOTEBOOK, SHELL = "python", "notebook", "shell"
_ENDINGS = {".py": PYTHON, ".pyw": PYTHON, ".ipynb": NOTEBOOK}
_ENDINGS.update(dict.fromkeys((".sh", ".bash", ".sbatch", ".slurm"), SHELL))
_SHELL = re.compile(r"^(Dockerfile|Makefile)|\.(dockerfile|mk)$", re.IGNORECASE)


def kind(name):
    """Return the kind of a file by its name: ``python``, ``notebook``, ``shell``, or None."""
    if _SHELL.search(name):
        return SHELL
    return _ENDINGS.get(os.path.splitext(name)[1].lower())


def walk(paths):
    """Yield (file, kind) of every file to read below the paths, sorted within each folder, without duplicates."""
    seen = set()
    for path in paths:
        for file in [path] if os.path.isfile(path) else _below(path):
            what = kind(os.path.basename(file)) or (PYTHON if file == path else None)
            if what and os.path.realpath(file) not in seen:
                seen.add(os.path.realpath(file))
                yield os.path.normpath(file), what


def _below(folder):
    for current, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in SKIPPED and not _is_environment(current, each))
        for name in sorted(files):
            path = os.path.join(current, name)
            if os.path.isfile(path) or os.path.islink(path):  # no pipes and devices; a dangling link is reported
                yield path


def _is_environment(parent, folder):
    return os.path.exists(os.path.join(parent, folder, "pyvenv.cfg"))


def decode(data):
    """Return the text of a file: UTF-8, or otherwise Latin-1, which decodes any bytes."""
    text = data[3:] if data[:3] == b"\xef\xbb\xbf" else data
    try:
        text = text.decode("utf-8")
    except UnicodeDecodeError:
        text = text.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


# -- notebooks ---------------------------------------------------------------------------------------------------------


class NotANotebook(Exception):
    """The file is not a notebook in JSON; the message says why."""


class Cell(NamedTuple):
    """A code cell.

    Attributes:
        number: its position among all cells, from 1.
        python: its Python source, line by line as in the notebook; magics and shell lines are blank or ``pass``.
        shell: (line number, text) of its shell lines.
    """

    number: int
    python: str
    shell: list


def code_cells(text):
    """Return the code cells of a notebook.

    Raises:
        NotANotebook: the text is not JSON, or has no cells.
    """
    try:
        content = json.loads(text)
        cells = content["cells"] if "cells" in content else content["worksheets"][0]["cells"]
        sources = [(number, _source(cell)) for number, cell in enumerate(cells, 1) if cell.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise NotANotebook(f"not a notebook: {type(error).__name__}: {error}") from None
    return [_cell(number, source) for number, source in sources]


def _source(cell):
    source = cell.get("source", cell.get("input", ""))
    return source if isinstance(source, str) else "".join(source)


def _cell(number, source):
    lines = source.replace("\r\n", "\n").split("\n")
    magic = lines[0].strip().split(" ")[0] if lines[0].lstrip().startswith("%%") else ""
    if magic in ("%%bash", "%%sh", "%%script", "%%!"):
        return Cell(number, "", list(enumerate(lines[1:], 2)))
    if magic and magic not in ("%%time", "%%timeit", "%%capture", "%%writefile", "%%prun"):
        return Cell(number, "", [])
    if magic == "%%writefile" and not lines[0].strip().endswith(".py"):
        return Cell(number, "", list(enumerate(lines[1:], 2)))
    shell = [(at, _command(line)) for at, line in enumerate(lines, 1) if line.lstrip()[:1] in ("!", "%")]
    return Cell(number, "\n".join(_as_python(line) for line in lines), shell)


def _command(line):
    return line.strip().lstrip("!%")


def _as_python(line):
    """Replace a magic or shell line by ``pass``, so that an indented block still has a body."""
    stripped = line.lstrip()
    if stripped[:1] in ("!", "%") or (stripped.endswith("?") and stripped.rstrip("?").isidentifier()):
        return line[: len(line) - len(stripped)] + "pass"
    return line
