"""Reports of strangers: one sentence, bounded memory, and texts that control neither the terminal nor a page."""

import gzip
import json
import os

import pytest
from helpers.made_reports import good_report
from helpers.pages import skip_without_report_extra

from ampcompat.abtest.report_data import Report
from ampcompat.cli import main
from ampcompat.errors import AmpError
from ampcompat.support import files
from ampcompat.support.terminal import printable

CONTROLS = "\x1b]0;owned\x07 \x9b2J \u202ereversed\u202c \r"


def altered(tmp_path, change):
    """Write a report that ``change`` has altered as JSON; return its path."""
    tree = json.loads(good_report(20).to_json())
    change(tree)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(tree))
    return str(path)


def one_row(**values):
    """Return a change of the values of the second row."""
    return lambda tree: list(tree["runs"].values())[1].update(values)


def many_rows(tree):
    tree["runs"].update({f"row {index}": dict(tree["runs"]["O1"]) for index in range(1500)})


def many_repeats(tree):
    tree["runs"]["O1"]["repeats"] = [dict(tree["runs"]["O1"], repeats=[]) for _ in range(1500)]


@pytest.mark.parametrize(
    "change, says",
    [
        (one_row(step_microseconds=[[1, 10**7]], samples=None), "too many runs or steps for --max-size 32"),
        (many_rows, "too many runs or steps for --max-size 32"),
        (many_repeats, "too many runs or steps for --max-size 32"),
        (lambda tree: tree["environment"].update(tolerance=10**400), "damaged at environment.tolerance: "),
    ],
    ids=["packed", "rows", "repeats", "overflow"],
)
def test_a_report_that_would_take_long_is_one_line(tmp_path, error_line, change, says):
    assert says in error_line("report", altered(tmp_path, change))


def test_max_size_allows_more_runs(tmp_path, error_line):
    path = altered(tmp_path, lambda tree: tree["runs"]["O1"].update(repeats=[dict(tree["runs"]["O1"])] * 130))
    assert "for --max-size 32" in error_line("report", path)
    assert main(["report", path, "--max-size", "64"]) == 0


def test_a_compressed_report_is_read_up_to_the_limit(tmp_path, error_line):
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(3):
            file.write(bytes(1 << 20))
    assert "it has more than 1 MiB; --max-size allows more" in error_line("report", str(path), "--max-size", "1")


@pytest.mark.skipif(os.name == "nt", reason="pipes and devices of POSIX")
def test_pipes_and_devices_are_not_read(tmp_path, error_line):
    os.mkfifo(str(tmp_path / "pipe"))
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        assert "it is a pipe or a device, not a file" in error_line("report", path)
    with pytest.raises(AmpError, match="Is a directory"):
        files.read(str(tmp_path))


def test_texts_of_a_file_control_nothing(tmp_path, capsys):
    def change(tree):
        tree["environment"].update(script=CONTROLS, machine=CONTROLS)
        tree["runs"]["row " + CONTROLS] = dict(tree["runs"]["O1"], error=CONTROLS)

    path, markdown, latex = altered(tmp_path, change), tmp_path / "o.md", tmp_path / "o.tex"
    main(["report", path, "--details", "--markdown", str(markdown), "--latex", str(latex)])
    texts = [capsys.readouterr().out] + [each.read_bytes().decode("utf-8") for each in (markdown, latex)]
    assert not [text for text in texts if set(text) & set("\x1b\x07\x9b\u202e\u202c\r")]
    assert "\\x1b]0;owned\\x07" in texts[0]


def test_markdown_and_latex_escape_html_and_line_breaks(tmp_path):
    name = "<script>alert(1)</script> & a\n\n| b"
    path = altered(tmp_path, lambda tree: tree["runs"].update({name: dict(tree["runs"]["O1"])}))
    written = [tmp_path / "o.md", tmp_path / "o.tex"]
    main(["report", path, "--markdown", str(written[0]), "--latex", str(written[1])])
    markdown, latex = [each.read_bytes().decode("utf-8") for each in written]
    assert "<" not in markdown and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; a \\| b" in markdown
    assert "<script" not in latex and "$<$script$>$alert(1)" in latex and "\\& a | b" in latex


@pytest.mark.parametrize("name", [CONTROLS, "constructor", "toString", "n" * 10**5], ids=lambda name: ascii(name[:9]))
def test_charts_of_such_and_long_names_and_those_that_javascript_has_for_every_object_are_drawn(tmp_path, capfd, name):
    skip_without_report_extra()

    def change(tree):
        tree["runs"][name] = dict(tree["runs"]["O1"], metrics={name: {"steps": [1, 1], "values": [1.0, 2.0]}})
        tree["environment"].update(script=name)

    path, page, image = altered(tmp_path, change), tmp_path / "page.html", tmp_path / "image.svg"
    assert main(["report", path, "--html", str(page), "--png", str(image)]) == 0
    assert "ERROR" not in capfd.readouterr().err  # of vl-convert, which draws the rest
    texts = [each.read_text(encoding="utf-8") for each in (image, page)]
    assert "\x1b" not in "".join(texts) and printable(name[:9]) in texts[0]


def test_printable_text_is_left_as_it_is():
    text = "caf\u00e9 \u2212 \u4e2d\u6587 \U0001f600\n\tx"
    assert printable(text) == text
    assert printable(CONTROLS) == "\\x1b]0;owned\\x07 \\x9b2J \\u202ereversed\\u202c \\x0d"


def test_a_series_of_ones_own_is_read_whatever_its_size(tmp_path):
    path = altered(tmp_path, one_row(step_microseconds=[[1, 3 * 10**6]], samples=None))
    with pytest.raises(AmpError, match="--max-size 32"):
        Report.load(path)
    assert len(Report.load(path, 1 << 40).runs["O1"].step_seconds) == 3 * 10**6
