"""Start Python processes for tests of command lines, or run their scripts in this process, which is faster.

Processes import ampcompat from this checkout by PYTHONPATH, whether it is installed or not.
"""

import os
import pathlib
import subprocess
import sys

from ampcompat.abtest.running import subprocess_child
from ampcompat.apex import install
from ampcompat.cli import main, run_command
from helpers import snapshots

ROOT = str(pathlib.Path(__file__).resolve().parents[2])
RUN = ("-m", "ampcompat", "run")


def read(*path):
    """Return the text of a file of this checkout."""
    return pathlib.Path(ROOT, *path).read_text(encoding="utf-8")


def environment(**changes):
    """Return an environment in which ``ampcompat`` is importable and nothing overrides a script."""
    env = {name: value for name, value in os.environ.items() if name not in snapshots.settings()}
    env.update(PYTHONPATH=ROOT, OMP_NUM_THREADS="1")
    env.update(changes)
    return env


def python(*arguments, **options):
    """Run this interpreter (or ``executable``) and return the finished process, its output as text."""
    executable = options.pop("executable", sys.executable)
    options.setdefault("env", environment())
    return subprocess.run(
        [executable] + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=300,
        **options,
    )


def run_in_process(monkeypatch, *arguments):
    """Do what ``ampcompat run ARGUMENTS`` does, but run the script in this process, not in a new one.

    Its environment is that of the command line until the test ends, and its output goes where this process prints.
    """
    commands = []
    monkeypatch.setattr(os, "execv", lambda _, command: commands.append(command))
    monkeypatch.setenv("PYTHONPATH", ROOT)  # which `run` changes, and the end of the test restores
    main(["run"] + [str(argument) for argument in arguments])
    script = commands[0][1 + len(run_command.interpreter_options()) :]
    install.install()
    try:
        subprocess_child.run_script(script)
    finally:
        install.uninstall()
