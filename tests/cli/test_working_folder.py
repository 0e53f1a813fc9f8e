"""No command imports files of the working folder in place of Python's modules, torch or ampcompat's own dependencies.

A script does import those of its own folder, as with plain Python.
"""

import os
import subprocess
import sys

import pytest
from helpers.made_reports import good_report
from helpers.processes import environment, python

NAMES = ("json", "torch", "apex", "sitecustomize", "usercustomize", "gzip", "select", "signal", "jinja2", "argparse")
TRAINING = "import apex.amp, torch\nprint(apex.amp.__file__)\n"


@pytest.fixture
def folder(tmp_path):
    """Return a folder with files of the names of modules, each of which says that it was imported."""
    for name in NAMES:
        (tmp_path / (name + ".py")).write_text(f"open({str(tmp_path)!r} + '/imported-' + __name__, 'w')\n1 / 0\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "training.py").write_text(TRAINING)
    good_report(20).save(str(tmp_path / "r.json"))
    return tmp_path


def imported(folder):
    """Return the names of the files that were imported."""
    return sorted(path.name for path in folder.glob("imported-*"))


COMMANDS = [
    ("report r.json", 0),
    ("check scripts", 0),
    ("ab --plan plan --levels O1 scripts/training.py", 0),
    ("run --device cpu scripts/training.py", 0),
    ("migrate scripts/training.py", 2),
    ("info", 0),
]


@pytest.mark.parametrize("command, code", COMMANDS)
def test_a_command_imports_nothing_of_the_working_folder(folder, command, code):
    done = python("-m", "ampcompat", *command.split(), cwd=str(folder))
    assert imported(folder) == [] and done.returncode == code and "Traceback" not in done.stderr


def test_neither_does_a_command_that_plan_writes(folder):
    python("-m", "ampcompat", "ab", "--plan", "plan", "--levels", "O1", "scripts/training.py", cwd=str(folder))
    line = (folder / "plan" / "commands.txt").read_text().splitlines()[-1]
    done = subprocess.run(line, shell=True, env=environment(), stdout=subprocess.PIPE, universal_newlines=True)
    assert "there was nothing to record" in done.stdout
    assert imported(folder) == []


@pytest.mark.parametrize("start", [["training.py"], ["-m", "training"]])
def test_a_script_imports_the_files_beside_it_as_with_plain_python(tmp_path, start):
    (tmp_path / "json.py").write_text("print('our own json')\n")
    (tmp_path / "training.py").write_text("import json, sys\nprint(sys.path[0])\n")
    plain = python(*start, cwd=str(tmp_path))
    done = python("-m", "ampcompat", "run", *start, cwd=str(tmp_path))
    assert plain.stdout == done.stdout and plain.stdout.startswith("our own json\n")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P is of 3.11")
def test_with_a_safe_path_the_path_is_left_as_it_is(folder):
    done = python("-P", "-m", "ampcompat", "report", "r.json", cwd=str(folder))
    assert done.returncode == 0 and imported(folder) == [] and os.path.exists(str(folder / "r.json"))
