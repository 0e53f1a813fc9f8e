"""The legs of .ci/run: their versions stand in one file, and a leg that cannot run is reported."""

import importlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import types

import pytest
from helpers.processes import read

from ampcompat.support.torch_compat import features

ROOT = pathlib.Path(__file__).resolve().parents[2]

HAS_BASH = sys.platform != "win32" and shutil.which("bash")

#: What stands for nox. What it does in a session is in a file, with $leg, $rest (the arguments of pytest) and, while it
#: installs, $installing.
NOX = """#!/bin/sh
case "$*" in *--list) cat "FOLDER/listed"; exit ;; esac
while [ $# -gt 0 ]; do
    case $1 in -s) leg=$2 ;; --install-only) installing=yes ;; --envdir) mkdir -p "$2" ;; --) shift; rest=$* ;; esac
    shift
done
echo "nox > Running session $leg"
. "FOLDER/session"
"""

#: An interpreter whose virtual environments have that nox.
PYTHON = """#!/bin/sh
[ "$1" = -m ] || exit 0
mkdir -p "$3/bin"
ln -s "EXECUTABLE" "$3/bin/python"
ln -s "FOLDER/nox" "$3/bin/nox"
ln -s /bin/true "$3/bin/pip"
"""
TESTS = "[ $installing ] || { echo 'torch 1 / python 3'; echo '== 1 passed in 1s =='; }"
FAILING = "[ $installing ] || { echo torch 1 / python 3; echo FAILED test_a; echo == 1 failed in 1s ==; exit 1; }"
COMMIT = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"


def rows(*path):
    return [line.split() for line in read(*path).splitlines() if not line.startswith("#")]


VERSIONS = rows(".ci", "torch_versions.txt")
OLDEST, NEWEST = VERSIONS[0][0], VERSIONS[-1][0]


FIXED = [row for row in VERSIONS if row[2] in ("main", "CI")]
OTHERS = [row[0] for row in VERSIONS if row[2] == "other"]
BY_HAND = [row[0] for row in VERSIONS if row[2] == "hand"]


def minor(release):
    return release.rpartition(".")[0]


def load(name):
    """Return .ci/NAME.py as a module."""
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / ".ci"))


@pytest.fixture(scope="module")
def every_torch():
    return load("every_torch")


@pytest.fixture
def run_legs(tmp_path, monkeypatch, capsys):
    """Return a function that runs legs whose sessions are a shell script; it returns (exit code, printed lines)."""
    if not HAS_BASH:
        pytest.skip("needs bash")
    legs = load("legs")
    monkeypatch.setattr(legs, "PAUSES", (0.1, 0.1, None))
    monkeypatch.setattr(legs, "nox", lambda *arguments: ["sh", str(tmp_path / "nox"), *arguments])

    def run(session, *names, free_gb=99):
        prepare_nox(tmp_path, session)
        monkeypatch.setattr(legs.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=free_gb * 2**30))
        (tmp_path / "root").mkdir()
        try:
            code = legs.main(str(tmp_path / "root"), *names)
        except SystemExit as error:
            code = error.code
        assert not (tmp_path / "root").exists()
        printed = capsys.readouterr()
        return code, (printed.out + printed.err).splitlines()

    return run


def prepare_nox(folder, session):
    """Write what stands for nox into a folder: it lists the releases, main and newest."""
    names = ["main", "newest"] + ["torch-" + row[0] for row in VERSIONS]
    listed = ["- {}{} -> tests".format(name, " [ci]" * (name in ("main", "torch-1.5.1"))) for name in names]
    (folder / "listed").write_text("\n".join(listed))
    (folder / "session").write_text(session)
    (folder / "nox").write_text(NOX.replace("FOLDER", str(folder)))
    (folder / "nox").chmod(0o755)


def test_the_versions_of_torch_are_the_same_everywhere():
    readme = read("README.md")
    (of_main,) = [row[0] for row in VERSIONS if row[2] == "main"]
    assert set(re.findall(r"pip install torch==(\S+) ", readme)) == {of_main}
    assert f"torch {OLDEST} to {minor(NEWEST)}" in readme
    folder = ROOT / "tests" / "clients"
    pinned = {line for path in folder.rglob("requirements.txt") for line in path.read_text().splitlines()}
    pins = {line[len("torch==") :] for line in pinned if line.startswith("torch==")}
    assert pins == {of_main, NEWEST}  # the newest torchvision needs the newest torch


def test_what_is_tested_is_what_is_recorded(every_torch):
    results = every_torch.read_results()
    fixed = {minor(row[0]) for row in FIXED}
    passed = {name for name, record in results.items() if every_torch.is_tested(record)}
    assert list(features.TESTED) == [minor(row[0]) for row in VERSIONS if minor(row[0]) in fixed | passed]
    whole = [name for name, record in results.items() if every_torch.is_clean(record) and name not in fixed]
    assert sorted(map(minor, OTHERS)) == sorted(whole), "CI draws what has passed in one run"
    readme = read("README.md")
    assert f"with {len(features.TESTED)} minor releases of torch" in readme


REPORT = """<testsuites><testsuite><testcase classname="tests.test_pairing" name="test_c[1]"/>
<testcase classname="tests.test_pairing" name="test_d"><failure message="wrong"/></testcase>
<testcase classname="tests.test_pairing" name="test_e"><skipped type="pytest.skip" message="no GPU"/></testcase>
<testcase classname="tests.test_pairing" name="test_f"><skipped type="pytest.xfail" message="known"/></testcase>
<testcase classname="tests.test_pairing" name="test_g"/>
<testcase classname="tests.test_pairing" name="test_g"><error/></testcase>
</testsuite></testsuites>"""


def test_a_report_of_pytest_is_counted_and_a_test_with_an_error_at_its_end_has_not_passed(every_torch, tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    assert every_torch.pytest_results.counts(tmp_path / "report.xml") == {
        "passed": 1,
        "skipped": 1,
        "failed": ["tests/test_pairing.py::test_d", "tests/test_pairing.py::test_g"],
        "known_failures": ["tests/test_pairing.py::test_f"],
    }


#: Prints what pytest -v prints with pytest-xdist, until it waits for a worker that has ended. The first line is the id
#: of its child, which keeps its output open.
HANGING_RUN = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(500)"], start_new_session=True).pid)
print('''tests/a.py::test_b[x y]\x20
[gw0] [  1%] PASSED tests/a.py::test_b[x y]\x20
tests/a.py::test_c\x20
tests/d.py::test_e\x20
[gw1] node down: Not properly terminated
[gw1] [ 50%] FAILED tests/d.py::test_e\x20
tests/d.py::test_f\x20
[gw0] [ 98%] SKIPPED tests/d.py::test_f\x20''', flush=True)
time.sleep(500)
"""


def test_a_run_whose_time_is_over_is_ended_with_its_processes_and_its_record_says_where_it_was(every_torch, tmp_path):
    command = [sys.executable, str(every_torch.TIME_LIMIT), "0.02", sys.executable, "-c", HANGING_RUN]
    status, lines = every_torch.print_and_keep(command)
    assert status == every_torch.TIME_IS_OVER and not is_running(int(lines[0]))
    record = every_torch.outcome(status, lines, tmp_path / "none", 90.0)
    assert record == {
        "passed": 1,
        "skipped": 1,
        "failed": ["tests/a.py::test_c", "tests/d.py::test_e"],
        "known_failures": [],
        "ended": {"minutes": 90, "at": ["tests/a.py::test_c"]},
    }
    record.update(build="9", python="3", date="now", commit="abc", lacks=[])
    table = every_torch.table({minor(OTHERS[0]): record})
    assert "| 9 | 3 | now at `abc`, ended after 90 minutes | 1 | 2 | 0 | 1 | nothing |" in table
    assert f"Running with torch {minor(OTHERS[0])} when its time was over: `tests/a.py::test_c`." in table
    again = dict(record, again={"failed": []})
    assert not (every_torch.is_clean(dict(record, failed=[])) or every_torch.is_tested(again))


def test_a_run_without_results_is_an_error_that_says_why(every_torch, tmp_path):
    with pytest.raises(RuntimeError, match="its 90 minutes were over before the first test; --minutes gives it more"):
        every_torch.outcome(every_torch.TIME_IS_OVER, ["Installing\n"], tmp_path / "none", 90.0)
    with pytest.raises(RuntimeError, match="pytest wrote no report"):
        every_torch.outcome(1, ["no disk\n"], tmp_path / "none", 90.0)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="elsewhere a process that leaves its group is not found")
@pytest.mark.parametrize("ending", ["its own", "SIGTERM"])
def test_a_limited_command_leaves_no_process_behind(every_torch, ending):
    start = "import subprocess; print(subprocess.Popen(['sleep', '500'], start_new_session=True).pid, flush=True)"
    script = start + ("" if ending == "its own" else "; import time; time.sleep(500)")
    command = [sys.executable, str(every_torch.TIME_LIMIT), "9", sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        if ending == "SIGTERM":
            process.terminate()
    assert process.returncode == (0 if ending == "its own" else 128 + signal.SIGTERM)
    assert not is_running(pid)


def test_what_was_run_is_recorded_and_what_could_not_be_run_is_not(every_torch, tmp_path, monkeypatch, capsys):
    first, second = [row[0] for row in VERSIONS if row not in FIXED][:2]

    def run(release, folder, processes, minutes, envdir, tests):
        if release == first:
            raise RuntimeError("no disk")
        record = {"build": release + "+cpu", "python": "3.9.1", "date": "2026-01-02", "commit": "abc", "lacks": ["x"]}
        failed = [] if tests else ["tests/a.py::test_b[1]", "tests/a.py::test_b[2]"]
        return dict(record, passed=5, skipped=2, failed=failed, known_failures=[])

    monkeypatch.setattr(every_torch, "run", run)
    monkeypatch.setattr(every_torch, "RESULTS", tmp_path / "RESULTS")
    monkeypatch.setattr(sys, "argv", ["every_torch.py", minor(first), second])
    assert every_torch.main() == 1
    assert f"torch {first} was NOT RUN: no disk" in capsys.readouterr().out
    assert list(every_torch.read_results()) == [minor(second)]
    page = every_torch.table(every_torch.read_results())
    assert f"| {second}+cpu | 3.9.1 | 2026-01-02 at `abc` | 5 | 2 | 0 | 2 | x |\n" in page
    assert f"| {first} | " in page and "(not examined yet): `tests/a.py::test_b`." in page
    monkeypatch.setattr(sys, "argv", ["every_torch.py", "--failed", second])
    assert every_torch.main() == 0
    page = every_torch.table(every_torch.read_results())
    assert "| 5 | 2; run again at `abc`: 0 | 0 | 2 | x |" in page and "not examined" not in page
    monkeypatch.setattr(sys, "argv", ["every_torch.py", "0.4"])
    with pytest.raises(SystemExit, match="no torch 0.4 in .*there are: 1.3.1, "):
        every_torch.main()


def test_the_workflow_runs_every_leg_of_ci():
    named = re.findall(r"\{leg: ([\w.-]+),", read(".github", "workflows", "ci.yml"))
    noxfile = read("noxfile.py")
    legs = [name.replace("_", "-") for name in re.findall(r'tags=\["ci"\]\)\ndef (\w+)', noxfile)] + [
        row[0] for row in rows("tests", "clients", "table.txt") if row[3] == "CI"
    ]
    legs += ["main" if row[2] == "main" else "torch-" + row[0] for row in VERSIONS if row in FIXED] + ["drawn"]
    assert sorted(named) == sorted(legs) and len(legs) > 8


@pytest.mark.parametrize("told", [False, True])
def test_the_files_that_hardly_depend_on_torch_are_ignored_if_pytest_is_told_so(request, told):
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    option = types.SimpleNamespace(ignore=["other"])
    conftest.pytest_configure(types.SimpleNamespace(option=option, getoption={"--torch-dependent": told}.get))
    paths = [pathlib.Path(path) for path in option.ignore]
    assert paths[0].name == "other" and all(path.exists() for path in paths[1:])
    assert (ROOT / "tests" / "cli" / "test_ci_legs.py" in paths) == told and (len(paths) > 1) == told


COVERED = f"pip installs torch {NEWEST}, which is the leg torch-{NEWEST}"
SKIPPING = TESTS.replace("echo '==", "echo 'SKIPPED [2] tests/a.py:3: no GPU'; echo '==")
PASSED, FAILED = "leg torch 1 / python 3: 1 passed in 1s", "FAILED: 1 failed in 1s"
WARNING = "******** WARNING: {} ********"
#: The session, the leg, the exit code, some of the lines that are printed, the beginning of the last one.
OUTCOMES = [
    (SKIPPING, "torch-1.5.1", 0, [PASSED, "     2  no GPU"], "failed: none; NOT RUN: none; main: not asked for"),
    ("echo something; " + TESTS, "main", 0, ["something"], "failed: none; NOT RUN: none; main: 1 passed in 1s"),
    (FAILING, "main", 1, ["FAILED test_a", f"leg main {FAILED}"], "failed: main; NOT RUN: none; main: "),
    (FAILING, "torch-1.5.1", 1, [f"leg torch-1.5.1 {FAILED}"], "failed: torch-1.5.1; NOT RUN: none; main: "),
    ("echo SyntaxError in it; exit 1", "torch-1.5.1", 1, ["SyntaxError in it"], "failed: torch-1.5.1; NOT RUN: none;"),
    ("echo Connection broken; exit 1", "main", 1, [], "failed: main; NOT RUN: main;"),
    (FAILING, "newest", 0, [WARNING.format(f"leg newest {FAILED}"), "FAILED test_a"], "failed: none; NOT RUN: none;"),
    (FAILING, "newest", 0, [WARNING.format("failed with the newest torch: newest")], "failed: none; NOT RUN: none;"),
    (
        f"echo 'nox > Session newest skipped: covered: {COVERED}'",
        "newest",
        0,
        [f"leg newest: {COVERED}"],
        "failed: none",
    ),
    (TESTS, "nowhere", 2, [], "unknown leg: nowhere (there are: main "),
]


@pytest.mark.parametrize("session, leg, code, printed, last", OUTCOMES)
def test_a_leg_is_told_to_have_passed_failed_or_not_been_run(run_legs, session, leg, code, printed, last):
    found, lines = run_legs(session, leg)
    assert found == code and lines[-1].startswith(last)
    assert [line for line in printed if lines.count(line) != 1] == []


def test_the_legs_after_one_with_a_thousand_failures_are_run(run_legs):
    failures = "echo '= FAILURES ='; seq -f 'assertion %099.f' 9999; echo '= short test summary info ='"
    session = f"[ $installing ] || {{ echo torch 1 / python 3; [ $leg = torch-1.12.1 ] || {{ {failures}; exit 1; }}; }}"
    code, lines = run_legs(session, "torch-1.5.1", "torch-1.12.1")
    assert code == 1 and 500 < len([line for line in lines if line.startswith("assertion")]) < 700
    assert "== leg torch-1.12.1" in lines and lines[-1].startswith("failed: torch-1.5.1; NOT RUN: none;")


CANNOT_FETCH = "its packages cannot be fetched"


@pytest.mark.parametrize(
    "session, free_gb, reason",
    [
        (TESTS, 14, "it needs 15 GB of free disk, and "),
        ("echo 'nox > Session X skipped: Python 3.8 not found. (took 1 s)'", 99, "Python 3.8 not found. ********"),
        ("echo 'The user requested (constraint) torch<=2.13.0'; exit 1", 99, CANNOT_FETCH),
        ("echo 'Retrying (Retry(total=4)'; exit 1", 99, CANNOT_FETCH),
        ("echo 'No space left on device'; exit 1", 99, CANNOT_FETCH),
    ],
)
def test_a_leg_that_cannot_be_installed_here_is_said_not_to_be_run(run_legs, tmp_path, session, free_gb, reason):
    attempts = tmp_path / "attempts"
    code, lines = run_legs(f"echo attempt >>{attempts}; {session}", "torch-" + NEWEST, free_gb=free_gb)
    assert any(f"leg torch-{NEWEST} was NOT RUN: {reason}" in line for line in lines)
    assert code == 0 and lines[-1].startswith(f"failed: none; NOT RUN: torch-{NEWEST};")
    if reason == CANNOT_FETCH:
        assert attempts.read_text().split() == ["attempt"] * 3 and session.split("'")[1] in lines


def test_a_leg_has_temporary_files_of_its_own_and_is_installed_while_the_leg_before_is_tested(run_legs, tmp_path):
    log, folders = tmp_path / "installed", tmp_path / "folders"
    session = f"""
        mktemp -d >>{folders}
        if [ $installing ]; then echo $leg >>{log}; exit; fi
        until [ "$(wc -l <{log})" = 2 ]; do sleep 0.1; done; {TESTS}
    """
    code, lines = run_legs(session, "torch-1.5.1", "torch-1.12.1")
    assert lines.count("leg torch 1 / python 3: 1 passed in 1s") == 2 and code == 0
    found = {pathlib.Path(line).parent for line in folders.read_text().split()}
    assert found == {tmp_path / "root" / "t0", tmp_path / "root" / "t1"}


def test_releases_between_the_oldest_and_the_newest_are_tested_with_what_depends_on_torch(run_legs, tmp_path):
    legs = ["main"] + ["torch-" + release for release in (OLDEST, "1.5.1", OTHERS[0], NEWEST, *BY_HAND[:1])]
    code, lines = run_legs(f'[ $installing ] || echo "$leg $rest" >>{tmp_path}/log; {TESTS}', *legs)
    given = dict(line.split(" ", 1) for line in (tmp_path / "log").read_text().splitlines())
    assert code == 0 and [leg for leg in legs if given[leg] == "--torch-dependent"] == [legs[2], legs[3]]
    assert {given[leg] for leg in legs} == {"--torch-dependent", ""}


def test_the_hash_of_the_commit_chooses_one_more_release(run_legs, monkeypatch):
    legs = load("legs")
    output = legs.output
    monkeypatch.setattr(legs, "output", lambda *command: COMMIT if command[0] == "git" else output(*command))
    code, lines = run_legs(TESTS)
    leg = "torch-" + OTHERS[int(COMMIT[:7], 16) % len(OTHERS)]
    begun = [line for line in lines if line.startswith("== leg ")]
    assert code == 0 and begun == ["== leg main", "== leg torch-1.5.1", "== leg " + leg]
    assert f"leg drawn by commit {COMMIT[:10]}: {leg} (.ci/run {leg} runs it again)" in lines


@pytest.mark.skipif(not HAS_BASH, reason="needs bash")
@pytest.mark.parametrize("is_interrupted", [True, False])
def test_the_command_runs_legs_and_leaves_no_process_and_no_file_behind(tmp_path, is_interrupted):
    pid = tmp_path / "pid"
    prepare_nox(tmp_path, f"echo $$ >{pid}.new; mv {pid}.new {pid}; " + ("exec sleep 500" if is_interrupted else TESTS))
    for number in range(7, 14):
        python = tmp_path / f"python3.{number}"
        python.write_text(PYTHON.replace("FOLDER", str(tmp_path)).replace("EXECUTABLE", sys.executable))
        python.chmod(0o755)
    env = dict(os.environ, PATH="{}:{}".format(tmp_path, os.environ["PATH"]), TMPDIR=str(tmp_path))
    command = ["bash", str(ROOT / ".ci" / "run"), "torch-1.5.1"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        if is_interrupted:
            wait_until(pid.exists)
            process.terminate()
        printed = process.communicate(timeout=300)[0].decode().splitlines()
    assert process.returncode == (128 + signal.SIGTERM if is_interrupted else 0), printed
    assert is_interrupted or printed[-1] == "failed: none; NOT RUN: none; main: not asked for"
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
