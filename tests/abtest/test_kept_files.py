"""Files that are older than a series: runs that overwrite them do not change them in the end."""

import errno
import os
import shutil
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import forked
from helpers.processes import environment

from ampcompat.abtest.planned_run import PlannedRun, own_files
from ampcompat.abtest.recording import kept_files
from ampcompat.abtest.recording.runs_in_progress import keeping
from ampcompat.abtest.running.subprocess_supervisor import SubprocessRun
from ampcompat.support.torch_compat import step_hooks

needs_events = pytest.mark.skipif(sys.version_info < (3, 8), reason="Python 3.7 has no audit events")


@pytest.fixture
def old(tmp_path):
    """Return the path of a file of yesterday."""
    path = tmp_path / "last.pt"
    path.write_text("mine")
    os.utime(str(path), (time.time() - 86400,) * 2)
    return path


def save(path):
    torch.save(torch.ones(2), str(path))


def write(path):
    path.write_text("of the run")


def append(path):
    with open(str(path), "a") as file:
        file.write(", and more")
    assert path.read_text() == "mine, and more"


def change_in_place(path):
    with open(str(path), "r+") as file:
        file.write("M")


def replace(path):
    other = path.with_name("temporary")
    other.write_text("of the run")
    os.replace(str(other), str(path))


def rename(path):
    os.rename(str(path), str(path.with_name("previous.pt")))


def remove(path):
    os.remove(str(path))


def remove_the_folder(path):
    """Delete the folder and make it anew, as scripts do with their outputs; first, a file in it is written."""
    write(path)
    shutil.rmtree(str(path.parent))
    path.parent.mkdir()


CHANGES = [save] + [
    pytest.param(each, marks=needs_events)
    for each in (write, append, change_in_place, replace, rename, remove, remove_the_folder)
]


@pytest.fixture
def safetensors(tmp_path, monkeypatch):
    """A package that writes files by another program, as the real one does by compiled code, without an event."""
    module = types.ModuleType("safetensors")
    module.serialize_file = lambda tensors, filename, metadata=None: os.system(f"printf 'of the run' > '{filename}'")
    monkeypatch.setitem(sys.modules, "safetensors", module)
    return module


def test_a_file_that_safetensors_writes_is_put_back(old, safetensors):
    write_by = safetensors.serialize_file
    with keeping(time.time()) as put_back:
        kept_by = safetensors.serialize_file
        kept_by({}, filename=str(old))
        assert old.read_text() == "of the run"
    assert put_back == [str(old)] and old.read_text() == "mine" and safetensors.serialize_file is write_by
    kept_by({}, str(old))  # a module that was imported during the block has it still
    assert old.read_text() == "of the run" and os.listdir(str(old.parent)) == ["last.pt"]


@needs_events
def test_of_a_folder_that_is_deleted_the_older_files_are_put_back(tmp_path):
    folder, since = tmp_path / "outputs", time.time()
    (folder / "logs").mkdir(parents=True)
    older, of_earlier_run = [folder / "last.pt", folder / "logs" / "mine.txt"], folder / "best.pt"
    for path in older:
        path.write_text("mine")
        os.utime(str(path), (since - 86400,) * 2)
    of_earlier_run.write_text("of an earlier run of the series")
    with keeping(since) as put_back:
        shutil.rmtree(str(folder))
        folder.mkdir()
        (folder / "new.pt").write_text("of the run")
    assert put_back == list(map(str, older)) and {path.read_text() for path in older} == {"mine"}
    assert sorted(os.listdir(str(folder))) == ["last.pt", "logs", "new.pt"] and os.listdir(str(tmp_path)) == ["outputs"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_from_before_the_series_is_put_back(old, change):
    before = os.stat(str(old)).st_mtime
    with keeping(time.time()) as put_back:
        change(old)
        if old.exists():
            write(old)  # again: now it is the run's own
    assert put_back == [str(old)] and old.read_text() == "mine" and os.stat(str(old)).st_mtime == before
    assert sorted(os.listdir(str(old.parent)))[-1] in ("last.pt", "previous.pt")


def test_files_of_the_series_and_empty_ones_stay_as_they_are_written(tmp_path):
    empty, since = tmp_path / "empty", time.time()
    empty.touch()
    os.utime(str(empty), (since - 5,) * 2)
    with keeping(since) as put_back:
        for path in (empty, tmp_path / "new"):
            write(path)
            write(path)
    assert put_back == [] and empty.read_text() == (tmp_path / "new").read_text() == "of the run"


def test_a_file_of_the_series_is_its_own_though_the_clock_of_files_is_behind(tmp_path):
    path, since = tmp_path / "last.pt", time.time()
    with keeping(since) as put_back:
        save(path)
        os.utime(str(path), (since - kept_files.CLOCK / 2,) * 2)
        save(path)
    assert put_back == []


def test_after_the_block_nothing_is_kept(old):
    with keeping(time.time()):
        pass
    write(old)
    assert os.listdir(str(old.parent)) == ["last.pt"] and old.read_text() == "of the run"


@needs_events
def test_two_runs_at_once_put_the_older_file_back_whoever_ends_last(old):
    since = time.time()
    with keeping(since) as outer:
        write(old)
        with keeping(since) as inner:
            write(old)
        assert inner == [] and old.read_text() == "of the run"
    assert outer == [str(old)] and old.read_text() == "mine"


@needs_events
@pytest.mark.skipif(sys.platform == "win32", reason="there is no flock")
def test_where_the_temporary_folder_has_no_locks_a_run_keeps_older_files_too(old, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with keeping(time.time()) as put_back:
        write(old)
    assert put_back == [str(old)] and old.read_text() == "mine"


@needs_events
@pytest.mark.skipif(sys.platform == "win32", reason="runs of other threads and processes are known by flock")
def test_a_run_that_is_about_to_open_a_file_when_another_ends_does_not_overwrite_the_older_one(old):
    """The run `late` looks at a file of `early`, waits until that has ended, and only then opens it."""
    common = (
        "import os, sys, time\ndef wait_for(path):\n    while not os.path.exists(path):\n        time.sleep(0.01)\n"
    )
    early = "open('last.pt', 'w').write('of early')\nos.mkdir('written')\nwait_for('seen')\n"
    late = (
        "wait_for('written')\n"
        "def stop_before_opening(event, args):\n"
        "    if event == 'open' and args[0] == 'last.pt':\n"
        "        os.mkdir('seen')\n"
        "        wait_for('ended')\n"
        "sys.addaudithook(stop_before_opening)\n"
        "open('last.pt', 'w').write('of late')\n"
    )
    folder, since, runs = old.parent, time.time(), []
    for name, text in ("early", early), ("late", late):
        (folder / name).write_text(common + text)
        runs.append(SubprocessRun(PlannedRun("O0", [name], folder=str(folder), since=since)))
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(run.run_to_end, lambda event: None) for run in runs]
        ends[0].result()
        (folder / "ended").mkdir()
        ends[1].result()
    assert old.read_text() == "mine" and [run.put_back for run in runs] == [[], [str(old)]]
    assert sorted(os.listdir(str(folder))) == ["early", "ended", "last.pt", "late", "seen", "written"]


@needs_events
@pytest.mark.skipif(not step_hooks.exist(), reason="this torch has no hooks of all optimizers: scripts without amp")
def test_the_checkpoint_of_an_earlier_training_survives_ab(old, tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse, os, torch\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--out', default='last.pt')\n"
        "out = parser.parse_args().out\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for step in range(4):\n"
        "    model(torch.ones(3, 4)).pow(2).mean().backward()\n"
        "    optimizer.step()\n"
        "    torch.save(model.state_dict(), out)\n"
        "os._exit(0)\n"
    )
    command = "--levels", "O0", "--no-memory", "--no-diagnose", script
    monkeypatch.chdir(tmp_path)
    done = forked.run(forked.ab, *command, env=environment())
    assert done.returncode == 0, done.stderr
    assert old.read_text() == "mine" and sorted(os.listdir(str(tmp_path))) == ["last.pt", "train.py"]
    told = "Runs changed last.pt, which existed before: put back. To keep what they write: --out 'runs/{run}/last.pt'."
    assert told in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    "command, expected",
    [
        (["--out", "last.pt"], "--out 'runs/{run}/last.pt'"),
        (["--out=./last"], "--out 'runs/{run}/last'"),
        (["--lr", "1"], "--save 'runs/{run}/last.pt'"),
        (["--out", "other.pt", "--save", "x"], "--save 'runs/{run}/last.pt'"),
    ],
)
def test_the_remedy_names_the_option_of_the_script(tmp_path, monkeypatch, command, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "p.add_argument('--lr', default=1.0)\n"
        "p.add_argument('-s', '--save', type=str, help='where (a file)', default='last.pt')\n"
    )
    assert own_files(["train.py"] + command, [str(tmp_path / "last.pt")]) == expected
    assert own_files(["-m", "nothing"], [str(tmp_path / "last.pt")]).startswith("OPTION 'runs/{run}/last.pt'")


@pytest.mark.parametrize("argument", ["runs/{run}/last.pt", "--out=runs/{run}/last.pt"])
def test_the_folder_of_an_argument_with_the_runs_name_is_made(tmp_path, argument):
    (tmp_path / "train.py").touch()
    child = SubprocessRun(PlannedRun("O1", ["train.py"], folder=str(tmp_path)))
    assert child._named(argument) == argument.replace("{run}", "O1")
    assert (tmp_path / "runs" / "O1").is_dir() and child._named("s3://{run}/x") == "s3://O1/x"
    assert sorted(os.listdir(str(tmp_path))) == ["runs", "train.py"]


@needs_events
@pytest.mark.parametrize("end", ["append", "write", "remove", "rmtree"])
def test_a_file_that_a_run_copies_with_its_old_time_is_the_runs_own(old, end):
    folder = old.parent / "copies"
    copied = folder / "copy.pt"
    with keeping(time.time()) as found:
        folder.mkdir()
        shutil.copy2(str(old), str(copied))
        if end == "rmtree":
            shutil.rmtree(str(folder))
        else:
            {"append": append, "write": write, "remove": remove}[end](copied)
    assert found == [] and old.read_text() == "mine"
    assert not copied.exists() or copied.read_text() == {"append": "mine, and more", "write": "of the run"}[end]
    assert copied.exists() == (end in ("append", "write"))


@needs_events
def test_an_older_file_whose_time_a_run_sets_before_it_writes_is_put_back(old):
    with keeping(time.time()):
        os.utime(str(old), None)
        write(old)
    assert old.read_text() == "mine"
