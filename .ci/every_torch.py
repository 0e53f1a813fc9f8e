"""Run the test suite with releases of torch, one after the other, and record what came of it.

    python .ci/every_torch.py 2.4 2.6     # the last patch releases of 2.4 and 2.6
    python .ci/every_torch.py --missing   # each release without a record, the newest first
    python .ci/every_torch.py --failed 2.4   # only what failed in its last run, with what is committed now
    python .ci/every_torch.py --table     # print the table that the site has

A release is the session ``torch-X.Y.Z`` of noxfile.py: a fresh environment with the Python that .ci/torch_versions.txt
names. It runs in a clone of the current commit, so that a record says what was tested, and both are removed afterwards:
an environment with the CUDA libraries of a newer torch has several GB. ``TMPDIR`` moves them; ``--envdir`` keeps and
uses environments in a folder. It needs nox.

A run that takes longer than ``--minutes`` is ended with all its processes: pytest-xdist can wait forever for a worker.
The record then says which tests were running, and counts them as failed.
"""

import argparse
import datetime
import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest_results

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSIONS = ROOT / ".ci" / "torch_versions.txt"
RESULTS = ROOT / ".ci" / "torch_results.json"
TIME_LIMIT = ROOT / ".ci" / "time_limit.py"
TIME_IS_OVER = 124  # the exit code of time_limit.py

#: What a release may lack, and an expression that is true where it has it. Run in the environment of the release.
FEATURES = {
    "autocast on a CPU": "'cpu' in facts.autocast_devices",
    "float16 in autocast on a CPU": "torch.float16 in facts.autocast_devices.get('cpu', ())",
    "saved-tensor hooks": "hasattr(torch.autograd, 'graph') and hasattr(torch.autograd.graph, 'saved_tensors_hooks')",
    "function modes": "features.has_function_modes()",
    "foreach operations": "features.has_foreach()",
    "`torch.compile`": "hasattr(torch, 'compile')",
    "FSDP": "hasattr(torch, 'distributed') and importlib.util.find_spec('torch.distributed.fsdp') is not None",
    "FSDP2": "features.has_foreach() and hasattr(importlib.import_module('torch.distributed.fsdp'), 'fully_shard')",
}
PROBE = """
import importlib.util, json, platform, torch
from ampcompat.support.torch_compat import features
facts, lacks = features.read(), []
for name, expression in FEATURES.items():
    try:
        present = eval(expression)
    except (AttributeError, ImportError):
        present = False
    lacks += [] if present else [name]
print(json.dumps({"build": str(torch.__version__), "python": platform.python_version(), "lacks": lacks}))
"""


def rows():
    """Return the rows of .ci/torch_versions.txt, oldest first: release, Python, leg, GB, also installed."""
    lines = VERSIONS.read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def minor(release):
    """Return the minor release of a release, such as "2.4" of "2.4.1"."""
    return ".".join(release.split(".")[:2])


def read_results():
    """Return the records: minor release -> what came of its last run, oldest first; {} before the first.

    A record without "commit" is that of a run before there were records: "run" is all that is known.
    """
    recorded = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return {minor(row[0]): recorded[minor(row[0])] for row in rows() if minor(row[0]) in recorded}


def write_results(results):
    """Write the records, one a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(record)}" for name, record in results.items()]
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def table(results):
    """Return the table of docs/machine.md, in Markdown: a row for each release of .ci/torch_versions.txt."""
    lines = ["| torch | Python | run | passed | failed | known failures | skipped | the release lacks |"]
    lines.append("|---|---|---|--:|--:|--:|--:|---|")
    for release, python, leg, *_ in reversed(rows()):
        by_default = {"run": "by CI at every commit" if leg in ("main", "CI") else "not recorded"}
        each = results.get(minor(release), by_default)
        if "commit" not in each:
            lines.append("| {} | {} | {} | | | | | |".format(release, python, each["run"]))
            continue
        cells = [each["build"], each["python"], "{} at `{}`{}".format(each["date"], each["commit"], ended(each))]
        cells += [each["passed"], failed(each), len(each["known_failures"]), each["skipped"]]
        cells.append(", ".join(each["lacks"]) or "nothing")
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join([""] + lines + failures(results) + ["", ""])


def ended(record):
    """Return what a cell says of a run that did not come to its end, such as ", ended after 90 minutes"."""
    return ", ended after {minutes:g} minutes".format(**record["ended"]) if "ended" in record else ""


def is_clean(record):
    """Return whether the last run of the whole suite came to its end, and nothing failed in it."""
    return record.get("failed") == [] and "ended" not in record


def is_tested(record):
    """Return whether every test has passed or was skipped, in the last run or when it was run again."""
    return not still_failing(record) and "ended" not in record


def failed(record):
    """Return the cell that says how many tests failed, and how many of them when they were run again."""
    cell = str(len(record["failed"]))
    if "again" in record:
        cell += "; run again at `{}`: {}".format(record["again"]["commit"], len(record["again"]["failed"]))
    return cell


def still_failing(record):
    """Return the names of the tests that fail, as far as is known."""
    return record.get("again", record).get("failed", [])


def failures(results):
    """Return lines that say which tests fail with each release, and why if a record says so ("why", by hand)."""
    lines = []
    for name, record in results.items():
        if "ended" in record:
            at = ", ".join(f"`{test}`" for test in record["ended"]["at"]) or "none"
            lines += ["", f"Running with torch {name} when its time was over: {at}."]
        tests = sorted({test.partition("[")[0] for test in still_failing(record)})
        if tests:
            why = record.get("why", "not examined yet")
            lines += ["", "Fails with torch {} ({}): {}.".format(name, why, ", ".join(f"`{test}`" for test in tests))]
    return lines


def print_and_keep(command, **options):
    """Run a command; return its exit code, and the lines that it has printed, which are printed here too."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options) as process:
        for line in process.stdout:
            lines.append(line.decode("utf-8", "replace"))
            print(lines[-1], end="", flush=True)
    return process.returncode, lines


def outcome(status, lines, report, minutes):
    """Return the counts of a record: from pytest's report, or from what it had printed when its time was over.

    Raises:
        RuntimeError: there are none.
    """
    if status != TIME_IS_OVER and report.exists():
        return pytest_results.counts(report)
    found = pytest_results.counts_of_output(lines)
    if status != TIME_IS_OVER:
        raise RuntimeError("pytest wrote no report; see the output above")
    if not found["failed"] and not found["passed"]:
        raise RuntimeError(f"its {minutes:g} minutes were over before the first test; --minutes gives it more")
    found["ended"] = {"minutes": minutes, "at": found.pop("at")}
    return found


def run(release, folder, processes, minutes, envdir=None, tests=()):
    """Run the suite, or some of its tests, with a release in a clone below a folder, and return its record.

    Args:
        release: such as "2.4.1".
        folder: a folder for the clone and the report, and for the environment if ``envdir`` is None.
        processes: how many run tests at the same time.
        minutes: after how many minutes the run, with the installation before it, is ended.
        envdir: where environments are kept, or None.
        tests: the tests to run, as pytest calls them; none means all.

    Raises:
        RuntimeError: the environment could not be made, or pytest did not get to its report.
    """
    limited = [sys.executable, str(TIME_LIMIT), str(minutes)]
    clone, report = pathlib.Path(folder) / "clone", pathlib.Path(folder) / "report.xml"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=str(clone), check=True, stdout=subprocess.PIPE)
    nox = [
        sys.executable,
        "-m",
        "nox",
        "--nocolor",
        "--error-on-missing-interpreters",
        "--envdir",
        str(envdir or folder),
    ]
    pytest = ["-n", str(processes), "-v", "--junitxml", str(report), *tests]
    command = limited + nox + (["-r"] if envdir else []) + ["-s", "torch-" + release, "--"] + pytest
    found = outcome(*print_and_keep(command, cwd=str(clone), env=environment(folder)), report, minutes)
    session = "torch-" + release.replace(".", "-")  # as nox names folders
    python = os.path.join(str(envdir or folder), session, "bin", "python")
    code = PROBE.replace("FEATURES.items()", f"{FEATURES!r}.items()")
    probed = subprocess.run([python, "-c", code], cwd=str(clone), check=True, stdout=subprocess.PIPE)
    record = json.loads(probed.stdout.decode())
    record.update(date=str(datetime.date.today()), commit=commit.stdout.decode()[:10])
    record.update(found)
    return record


def environment(folder):
    """Return the environment of nox: each Python of pyenv on PATH, nothing kept of downloads, temporary files here."""
    env = dict(os.environ, PIP_NO_CACHE_DIR="1", PIP_DISABLE_PIP_VERSION_CHECK="1", TMPDIR=str(folder))
    env.setdefault("OMP_NUM_THREADS", "1")
    env.pop("PYTHONPATH", None)
    pyenv = env.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = sorted(glob.glob(os.path.join(pyenv, "versions", "3.*", "bin")), key=by_version)
    env["PATH"] = os.pathsep.join(found[::-1] + [env["PATH"]])
    return env


def by_version(path):
    """Return the numbers in a path, as a key to sort by."""
    return [int(number) for number in re.findall(r"\d+", path)]


def chosen(arguments):
    """Return the releases that were asked for: full versions, in the order given, or what has no record."""
    releases = [row[0] for row in rows()]
    if arguments.missing:
        recorded = {name for name, record in read_results().items() if "commit" in record}
        return [release for release in reversed(releases) if minor(release) not in recorded]
    found = []
    for name in arguments.releases:
        matching = [release for release in releases if name in (release, minor(release))]
        if not matching:
            raise SystemExit("no torch {} in {} (there are: {})".format(name, VERSIONS, ", ".join(releases)))
        found += matching
    return found


def main():
    """Run what was asked for; return 1 if a test failed or a release could not be run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", metavar="X.Y", help="minor releases, or X.Y.Z as in torch_versions.txt")
    parser.add_argument("--missing", action="store_true", help="every release that has no record")
    parser.add_argument("--failed", action="store_true", help="run what failed in the last run of the whole suite")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table")
    parser.add_argument("--envdir", type=os.path.abspath, help="keep environments in this folder, and use those there")
    parser.add_argument("-n", "--processes", type=int, default=2, help="of pytest-xdist (default: 2)")
    parser.add_argument("--minutes", type=float, default=120, help="end a run that takes longer (default: 120)")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(read_results()))
        return 0
    status = 0
    for release in chosen(arguments):
        before = read_results().get(minor(release), {})
        tests = before.get("failed", []) if arguments.failed else []
        if arguments.failed and not tests:
            print(f"torch {release}: nothing has failed, or it was not run")
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                record = run(release, folder, arguments.processes, arguments.minutes, arguments.envdir, tests)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                print(f"torch {release} was NOT RUN: {error}", flush=True)
                status = 1
                continue
        count = len(record["failed"])
        print("torch {}: {} passed, {} failed{}".format(release, record["passed"], count, ended(record)), flush=True)
        if tests:
            record = dict(before, again={name: record[name] for name in ("date", "commit", "passed", "failed")})
        write_results(dict(read_results(), **{minor(release): record}))
        status = status or int(count > 0)
    return status


if __name__ == "__main__":
    sys.exit(main())
