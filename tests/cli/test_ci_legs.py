"""The legs of .ci/run: they test what they declare, and a leg that cannot run reports it."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

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


def run_leg(folder, **commands):
    """Run the newest leg with shell scripts in the places of some commands."""
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = dict(os.environ, PATH="{}:{}".format(folder, os.environ["PATH"]), TMPDIR=str(folder))
    command = ["bash", str(SCRIPT), "torch-" + NEWEST]
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)


def test_the_newest_tested_torch_is_the_same_everywhere():
    assert features.NEWEST_TESTED == NEWEST.rpartition(".")[0]
    assert "torch-{0}) leg".format(NEWEST) in SCRIPT.read_text()
    assert "torch-" + NEWEST in re.search(r'^ALL="(.+)$', SCRIPT.read_text(), re.MULTILINE).group(1)
    assert '("3.11", "{}", [])'.format(NEWEST) in (ROOT / "noxfile.py").read_text()
    said = "torch {} to {}".format(features.OLDEST_TESTED, features.NEWEST_TESTED)
    assert said in (ROOT / "README.md").read_text()
    assert '"torch>={}"'.format(features.OLDEST_TESTED) in (ROOT / "setup.py").read_text()


@needs_bash
def test_a_leg_without_enough_disk_is_said_not_to_be_run(tmp_path):
    ended = run_leg(tmp_path, df="#!/bin/sh\necho head\necho /dev/x 99999999 0 15000000 1% /\n")
    assert "leg torch-2.15.0 was NOT RUN: it needs 15 GB of free disk, and" in ended.stdout
    assert "has 14 GB" in ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("failed: none; NOT RUN: torch-2.15.0;")
    assert ended.returncode == 0


@needs_bash
def test_a_leg_that_the_machines_constraints_refuse_is_said_not_to_be_run(tmp_path):
    plenty = "#!/bin/sh\necho head\necho /dev/x 99999999 0 99999999 1% /\n"
    commands = {"df": plenty, "python3.11": PYTHON, "pip": REFUSED, "sleep": "#!/bin/sh\n"}
    ended = run_leg(tmp_path, **commands)
    assert "leg torch-2.15.0 was NOT RUN: its packages cannot be fetched" in ended.stdout
    assert "The user requested (constraint) torch<=2.13.0" in ended.stdout
    assert ended.returncode == 0
