"""Seed faults in a copy of the package and see whether the tests catch them.

    nox -s mutations                   all faults of seeded_faults.py and seeded_cast_faults.py
    nox -s mutations -- --only NAME    those whose name contains NAME
    nox -s mutations -- --list         their names, functions and tests

First the tests must pass without a fault. Then each fault is seeded alone, the test files that should catch it are run
until one test fails, and a row is printed. The exit code is 1 if a fault survives, 2 if its code is no longer found.
"""

import argparse
import ast
import functools
import multiprocessing
import os
import pathlib
import re
import shutil
import sys
import tempfile

from helpers.seeded_cast_faults import FAULTS_OF_CASTS
from helpers.seeded_faults import FAULTS_OF_TRAINING

FAULTS = FAULTS_OF_TRAINING + FAULTS_OF_CASTS
ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ampcompat"
COPIED = ("ampcompat", "tests", "pyproject.toml", "examples")
PASSED, FAILED = 0, 1  # of pytest's exit codes


@functools.lru_cache(maxsize=None)
def definitions():
    """Return ``{dotted name: (path, first line, last line)}`` of every module, class and function."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        found[name] = path, 0, source.count("\n")
        nodes = [(ast.parse(source), name)]
        while nodes:
            parent, prefix = nodes.pop()
            for node in ast.iter_child_nodes(parent):
                name = prefix
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    name = prefix + "." + node.name
                    found[name] = path, node.lineno - 1, node.end_lineno
                nodes.append((node, name))
    return found


def places(fault):
    """Return ``[(path, start, end)]`` of the code of a fault: where it is in the text of a file."""
    functions = [at for name, at in definitions().items() if ("." + name).endswith("." + fault.function)]
    tokens = re.findall(r"\w+|\S", fault.code)
    found = []
    for path, first, last in functions:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        offset = len("".join(lines[:first]))
        for match in re.finditer(r"\s*".join(map(re.escape, tokens)), "".join(lines[first:last])):
            found.append((path, offset + match.start(), offset + match.end()))
    return found


def mutant(fault):
    """Return the file of a fault and its text with the fault."""
    ((path, start, end),) = places(fault)
    source = path.read_text(encoding="utf-8")
    return path, source[:start] + fault.replacement + source[end:]


def stale(faults):
    """Return a sentence for each fault whose code is not in exactly one place."""
    sentence = (
        "{}: the code {!r} is in {} places in {}, expected one: change its row in tests/helpers/seeded_*faults.py"
    )
    counts = [(fault, len(places(fault))) for fault in faults]
    return [sentence.format(each.name, each.code, count, each.function) for each, count in counts if count != 1]


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
    for name in [name for name in sys.modules if name.partition(".")[0] == "helpers"]:
        del sys.modules[name]
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
    original, source = mutant(fault)
    path, before = folder / original.relative_to(ROOT), original.read_text(encoding="utf-8")
    path.write_text(source, encoding="utf-8")
    try:
        code = run_tests(folder, fault.tests.split(), log)
    finally:
        path.write_text(before, encoding="utf-8")
    if code == FAILED:
        return True, f"caught by {failed_test(log)}"
    if code == PASSED:
        return False, f"SURVIVED {fault.tests}"
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
            print(f"{fault.name:52} {fault.function:34} {sentence}", flush=True)
    print(f"{len(faults) - survived} of {len(faults)} faults caught")
    return 1 if survived else 0


def main(arguments=None):
    """Read the command line, check that the code of every fault is there, and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", default="", help="faults whose name contains NAME")
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    options = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if options.only in fault.name]
    if not faults:
        parser.error(f"no fault's name contains {options.only!r}; --list prints them")
    for sentence in stale(faults):
        print(sentence, file=sys.stderr)
    if stale(faults):
        return 2
    if options.list:
        for fault in faults:
            print(f"{fault.name:52} {fault.function:34} {fault.tests}")
        return 0
    return run(faults)


if __name__ == "__main__":
    sys.exit(main())
