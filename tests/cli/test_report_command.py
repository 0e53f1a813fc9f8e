"""``ampcompat report``: reports from files as tables, page and image; wrong files are errors in one line."""

import sys

import pytest
from helpers.made_reports import MADE, good_report
from helpers.pages import skip_without_report_extra
from helpers.processes import python

from ampcompat.abtest import to_text
from ampcompat.abtest.judging import advice
from ampcompat.abtest.report_data import Report
from ampcompat.cli import main


@pytest.fixture
def files(tmp_path):
    """Return the paths of two reports as ``ab --json`` writes them."""
    paths = []
    for name, report in (("first.json", good_report(20)), ("second.json", MADE["nothing measured"]())):
        advice.advise(report)
        path = tmp_path / name
        path.write_text(report.to_json(), encoding="utf-8")
        paths.append(str(path))
    return paths


def test_the_table_is_printed(files, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["report", files[0]]) == 0
    report = good_report(20)
    advice.advise(report)
    assert capsys.readouterr().out == to_text(report, 100) + "\n"


def test_a_report_is_written_again(files, capsys, tmp_path):
    new = str(tmp_path / "new.json")
    assert main(["report", files[0], "--target", "loss=0.1", "--json", new]) == 0
    assert capsys.readouterr().err == f"wrote {new}\n"
    report = Report.load(new)
    assert report.runs == Report.load(files[0]).runs and report.environment["target"] == "loss=0.1"


def test_a_page_and_an_image_are_written(files, capsys, tmp_path):
    skip_without_report_extra()
    page, image = str(tmp_path / "page.html"), str(tmp_path / "image.png")
    assert main(["report", files[0], "--html", page, "--png", image]) == 0
    with open(page, encoding="utf-8") as file:
        assert "Opt levels of digits_cnn.py" in file.read()
    with open(image, "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    assert capsys.readouterr().err == f"wrote {page}\nwrote {image}\n"


@pytest.mark.parametrize(
    "content, says",
    [
        ("{", "not JSON"),
        ("[" * 100000, "not JSON"),
        ("import torch", "Expected a file of `ab --json`"),
        ("{}", "not a report"),
        ("[]", "not a report"),
        ('{"schema": 1, "runs": {}}', "schema 1"),
        ('{"schema": 9, "runs": {}}', "schema 9"),
        ('{"schema": 2, "runs": {"O1": 1}}', "damaged"),
    ],
    ids=lambda text: text[:20],
)
def test_a_file_that_is_not_a_report_is_named_in_one_line(error_line, tmp_path, content, says):
    path = tmp_path / "bad.json"
    path.write_text(content)
    said = error_line("report", path)
    assert "bad.json: " in said and says in said


def test_without_the_library_the_line_says_what_to_install(error_line, files, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    line = error_line("report", files[0], "--html", tmp_path / "page.html")
    assert "pip install 'vl-convert-python>=1.9' jinja2" in line
    assert not (tmp_path / "page.html").exists()


def test_torch_is_not_imported(files, tmp_path):
    skip_without_report_extra()
    code = "import sys; sys.modules['torch'] = None; from ampcompat.cli import main; sys.exit(main(sys.argv[1:]))"
    options = ("report", files[1], "--html", str(tmp_path / "p.html"), "--png", str(tmp_path / "p.png"))
    done = python("-W", "error", "-c", code, *options)
    assert (done.returncode, done.stderr.count("\n")) == (0, 2), done.stderr
