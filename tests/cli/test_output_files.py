"""No command writes over a file that it reads, or two results into one file; it says so before it writes anything."""

import os

import pytest
from helpers.made_reports import good_report

from ampcompat.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the working folder: a script, a link to it, a report and a checkpoint that cannot be read."""
    (tmp_path / "t.py").write_text("from apex import amp\nmodel = amp.initialize(model)\n")
    (tmp_path / "plan").mkdir()
    for path in (tmp_path / "r.json", tmp_path / "plan" / "O0.json"):
        good_report(20).save(str(path))
    (tmp_path / "c.pt").write_bytes(b"PK")
    (tmp_path / "link.py").symlink_to("t.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    """Return the files of a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
@pytest.mark.parametrize(
    "arguments",
    [
        "check t.py --json t.py",
        "check t.py --sarif ./t.py",
        "check . --json t.py",
        "check t.py --json link.py",
        "check t.py --json new --sarif new",
        "report r.json --markdown r.json",
        "report r.json --latex r.json",
        "report r.json --html r.json",
        "report plan --markdown plan/O0.json",
        "report r.json --markdown new --latex new",
        "migrate t.py -o t.py --force",
        "migrate link.py -o t.py --force",
        "checkpoint c.pt --to O1 -o c.pt",
        "ab --json t.py t.py",
        "ab --csv t.py --against t.py link.py",
        "ab --json new --csv new t.py",
        "forecast --json t.py t.py",
        "run --op-stats-file t.py t.py",
    ],
)
def test_an_input_is_never_an_output(folder, arguments, capsys):
    before = contents(folder)
    with pytest.raises(SystemExit) as left:
        main(arguments.split())
    told = capsys.readouterr()
    assert left.value.code == 2 and told.out == "" and told.err.count("\n") == 1
    assert told.err.endswith("; give another name\n")
    assert contents(folder) == before


def test_a_result_of_an_earlier_check_is_replaced(folder):
    assert main(["check", ".", "--json", "found.json"]) == main(["check", ".", "--json", "found.json"])
    assert (folder / "found.json").read_text().startswith("{")
