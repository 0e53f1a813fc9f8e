"""The legs of .ci/run: they test what they declare, and a leg that cannot run reports it."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

from ampcompat.torch_compat import features

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "run"
NEWEST = re.search(r"torch==(\S+)", (ROOT / ".ci" / "requirements-torch-2.15.0.txt").read_text()).group(1)

needs_bash = pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash")

PYTHON = """#!/bin/sh
case $1 in
    -m) mkdir -p "$3/bin"; echo 'deactivate() { :; }' >"$3/bin/activate" ;;
    --version) echo "Python 3.11.0" ;;
esac
"""
REFUSED = """#!/bin/sh
echo "ERROR: Cannot install torch==2.15.0 because these package versions have conflicting dependencies."
echo "    The user requested torch==2.15.0"
echo "    The user requested (constraint) torch<=2.13.0"
exit 1
"""


def start_legs(folder, *legs, **commands):
    """Start legs with shell scripts in the places of some commands."""
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = dict(os.environ, PATH="{}:{}".format(folder, os.environ["PATH"]), TMPDIR=str(folder))
    command = ["bash", str(SCRIPT)] + list(legs)
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)


def run_leg(folder, **commands):
    """Run the newest leg; return (exit code, what it prints)."""
    process = start_legs(folder, "torch-" + NEWEST, **commands)
    printed = process.communicate(timeout=300)[0]
    return process.returncode, printed


def test_the_tested_versions_of_torch_are_those_of_the_legs():
    in_nox = set(re.findall(r'\("3\.\d+", "([\d.]+)", ', (ROOT / "noxfile.py").read_text()))
    assert {tuple(each.split(".")[:2]) for each in in_nox} == {tuple(each.split(".")) for each in features.TESTED}
    of_main = set(re.findall(r"pip install torch==(\S+) -e", (ROOT / "README.md").read_text()))
    assert set(re.findall(r"torch-(\d[\d.]*\d)", SCRIPT.read_text())) == in_nox - of_main


def test_the_newest_and_the_oldest_torch_are_the_same_everywhere():
    assert features.TESTED[-1] == NEWEST.rpartition(".")[0]
    assert "torch-" + NEWEST in re.search(r'^ALL="(.+)$', SCRIPT.read_text(), re.MULTILINE).group(1)
    oldest = re.search('"torch>=([^"]+)"', (ROOT / "setup.py").read_text()).group(1)
    assert features.TESTED[0] == oldest.rpartition(".")[0]
    assert "torch {} to {}".format(oldest, features.TESTED[-1]) in (ROOT / "README.md").read_text()


@needs_bash
def test_a_leg_without_enough_disk_is_said_not_to_be_run(tmp_path):
    code, printed = run_leg(tmp_path, df="#!/bin/sh\necho head\necho /dev/x 99999999 0 15000000 1% /\n")
    assert "leg torch-2.15.0 was NOT RUN: it needs 15 GB of free disk, and" in printed
    assert "has 14 GB" in printed
    assert printed.splitlines()[-1].startswith("failed: none; NOT RUN: torch-2.15.0;")
    assert code == 0


@needs_bash
def test_a_leg_that_the_machines_constraints_refuse_is_said_not_to_be_run(tmp_path):
    plenty = "#!/bin/sh\necho head\necho /dev/x 99999999 0 99999999 1% /\n"
    commands = {"df": plenty, "python3.13": PYTHON, "pip": REFUSED, "sleep": "#!/bin/sh\n"}
    code, printed = run_leg(tmp_path, **commands)
    assert "leg torch-2.15.0 was NOT RUN: its packages cannot be fetched" in printed
    assert "The user requested (constraint) torch<=2.13.0" in printed
    assert code == 0


@needs_bash
def test_a_leg_is_installed_while_the_tests_of_the_leg_before_run(tmp_path):
    log = tmp_path / "installed"
    tests = """#!/bin/sh
    case $* in
        "-m pytest "*) until [ "$(wc -l <{0})" = 2 ]; do sleep 0.1; done; echo "== 1 passed in 1s ==" ;;
        *) echo "torch 1 / python 3" ;;
    esac
    """.format(log)
    stubs = {"python3.8": PYTHON, "python3.10": PYTHON, "python": tests, "pip": "#!/bin/sh\necho $3 >>{}\n".format(log)}
    process = start_legs(tmp_path, "torch-1.5.1", "torch-1.12.1", **stubs)
    printed = process.communicate(timeout=300)[0]
    assert printed.count("leg torch 1 / python 3: 1 passed in 1s") == 2
    assert printed.splitlines()[-1].startswith("failed: none; NOT RUN: none;") and process.returncode == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


@needs_bash
def test_an_interrupted_run_ends_the_installation_in_the_background(tmp_path):
    pid = tmp_path / "pid"
    stubs = {"python3.8": PYTHON, "pip": "#!/bin/sh\necho $$ >{0}.new; mv {0}.new {0}\nexec sleep 500\n".format(pid)}
    process = start_legs(tmp_path, "torch-1.5.1", **stubs)
    wait_until(pid.exists)
    process.terminate()
    process.communicate(timeout=300)
    wait_until(lambda: not is_running(int(pid.read_text())))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def wait_until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come")


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
