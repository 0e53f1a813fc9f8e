"""Seed faults in a copy of the package and see whether the tests catch them.

    python tests/mutations.py                 all faults of seeded_faults.py and seeded_cast_faults.py
    python tests/mutations.py --only NAME     those whose name contains NAME
    python tests/mutations.py --list          their names, files and tests

First the tests must pass without a fault. Then each fault is seeded alone, the test files that should catch it are run
until one test fails, and a row is printed. The exit code is 1 if a fault survives, 2 if a text is no longer found.
"""

import argparse
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile

from helpers.seeded_cast_faults import FAULTS_OF_CASTS
from helpers.seeded_faults import FAULTS_OF_TRAINING

FAULTS = FAULTS_OF_TRAINING + FAULTS_OF_CASTS
ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = ("ampcompat", "tests", "pyproject.toml", "examples")
PASSED, FAILED = 0, 1  # of pytest's exit codes


def occurrences(fault):
    """Return how often the text of a fault is in its file; 0 if there is no such file."""
    path = ROOT / "ampcompat" / fault.file
    return path.read_text(encoding="utf-8").count(fault.text) if path.exists() else 0


def stale(faults):
    """Return a sentence for each fault whose text does not occur exactly once."""
    return [
        "{}: the text {!r} occurs {} times in ampcompat/{}, expected once: change its row in "
        "tests/seeded_faults.py or tests/seeded_cast_faults.py".format(
            fault.name, fault.text, occurrences(fault), fault.file
        )
        for fault in faults
        if occurrences(fault) != 1
    ]


def run_tests(folder, files, log):
    """Run test files of the copy in ``folder`` in a process; return pytest's exit code and write what it prints."""
    # Forked from a process that has imported torch, but nothing of ampcompat: importing it would take most of the time.
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    process = context.Process(target=_pytest, args=(str(folder), files, str(log)))
    process.start()
    process.join()
    return process.exitcode


def _pytest(folder, files, log):
    os.chdir(folder)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ["PYTHONPATH"] = folder
    sys.path[:] = [folder] + [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != ROOT / "tests"]
    for name in ("seeded_faults", "seeded_cast_faults"):
        sys.modules.pop(name, None)
    sys.dont_write_bytecode = True
    import pytest

    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider"] + ["tests/" + file for file in files])
    sys.stdout.flush()
    os._exit(int(code))


def failed_test(log):
    """Return the name of the test that failed, from what pytest printed."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[-1].split(" - ")[0].partition(" ")[2] if lines else "a test"


def try_fault(fault, folder, log):
    """Seed a fault in the copy, run its tests and take it out again; return (whether it was caught, a sentence)."""
    path = folder / "ampcompat" / fault.file
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(fault.text, fault.replacement), encoding="utf-8")
    try:
        code = run_tests(folder, fault.tests.split(), log)
    finally:
        path.write_text(before, encoding="utf-8")
    if code == FAILED:
        return True, "caught by {}".format(failed_test(log))
    if code == PASSED:
        return False, "SURVIVED {}".format(fault.tests)
    return False, "pytest ended with exit code {}:\n{}".format(code, log.read_text(errors="replace")[-2000:])


def preload():
    """Import what tests import and what is not tested here."""
    import pytest  # noqa: F401
    import torch  # noqa: F401

    try:
        import torch._dynamo  # noqa: F401
    except ImportError:
        pass  # old torch has none


def run(faults):
    """Try all faults and print a row for each; return the exit code."""
    survived = 0
    preload()
    with tempfile.TemporaryDirectory() as name:
        folder, log = pathlib.Path(name).resolve(), pathlib.Path(name).resolve() / "log"
        for each in COPIED:
            copy = shutil.copytree if (ROOT / each).is_dir() else shutil.copy
            copy(str(ROOT / each), str(folder / each))
        files = sorted({file for fault in faults for file in fault.tests.split()})
        if run_tests(folder, files, log) != PASSED:
            print("The tests fail without a fault:\n" + log.read_text(errors="replace")[-4000:])
            return 2
        for fault in faults:
            caught, sentence = try_fault(fault, folder, log)
            survived += not caught
            print("{:52} {:34} {}".format(fault.name, fault.file, sentence), flush=True)
    print("{} of {} faults caught".format(len(faults) - survived, len(faults)))
    return 1 if survived else 0


def main(arguments=None):
    """Read the command line, check that every text is there, and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", default="", help="faults whose name contains NAME")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    options = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if options.only in fault.name]
    if not faults:
        parser.error("no fault's name contains {!r}; --list prints them".format(options.only))
    for sentence in stale(faults):
        print(sentence, file=sys.stderr)
    if stale(faults):
        return 2
    if options.list:
        for fault in faults:
            print("{:52} {:34} {}".format(fault.name, fault.file, fault.tests))
        return 0
    return run(faults)


if __name__ == "__main__":
    sys.exit(main())
