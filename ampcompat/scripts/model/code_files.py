"""Find the files of a code base, and read them without raising errors."""

import os
import re

#: Folders without code of the project.
SKIPPED = {
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "node_modules",
    ".tox",
    ".nox",
    ".venv",
    "venv",
    "site-packages",
    ".eggs",
}
SKIPPED |= {".ipynb_checkpoints", ".mypy_cache", ".pytest_cache"}

#: Larger files are data.
LARGEST = 32 << 20

PYTHON, NOTEBOOK, REQUIREMENTS, SHELL = "python", "notebook", "requirements", "shell"
_ENDINGS = {".py": PYTHON, ".pyw": PYTHON, ".ipynb": NOTEBOOK, ".sh": SHELL, ".bash": SHELL, ".sbatch": SHELL}
_ENDINGS.update(
    {".slurm": SHELL, ".yml": REQUIREMENTS, ".yaml": REQUIREMENTS, ".toml": REQUIREMENTS, ".cfg": REQUIREMENTS}
)
_REQUIREMENTS = re.compile(r"(.*requirements?.*|constraints.*)\.(txt|in|pip)$|^Pipfile$", re.IGNORECASE)
_SHELL = re.compile(r"^(Dockerfile|Makefile)|\.(dockerfile|mk)$", re.IGNORECASE)


class Unreadable(Exception):
    """A file could not be read; the message says why."""


def kind(name):
    """Return the kind of a file by its name: ``python``, ``notebook``, ``requirements``, ``shell``, or None."""
    if _REQUIREMENTS.match(name):
        return REQUIREMENTS
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


def read(path):
    """Return the bytes of a file.

    Raises:
        Unreadable: it cannot be opened or is too large.
    """
    try:
        if os.path.getsize(path) > LARGEST:
            raise Unreadable(f"larger than {LARGEST >> 20} MiB")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None


def decode(data):
    """Return the text of a file: UTF-8, or otherwise Latin-1, which decodes any bytes."""
    text = data[3:] if data[:3] == b"\xef\xbb\xbf" else data
    try:
        text = text.decode("utf-8")
    except UnicodeDecodeError:
        text = text.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")
