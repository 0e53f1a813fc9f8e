"""The code cells of a Jupyter notebook, as Python source and shell lines."""

import json
from typing import NamedTuple


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
