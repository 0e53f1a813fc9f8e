"""The tables for a pull request and for a paper."""

import re

import pytest
from helpers.made_reports import MADE, good_report, made_run, two_losses_report

from ampcompat.abtest import Report
from ampcompat.abtest.judging import advice
from ampcompat.abtest.judging.summary import summarize
from ampcompat.abtest.report import tables
from ampcompat.abtest.report.markup import to_latex, to_markdown
from ampcompat.cli import main


def report():
    """Return a report with everything that a footnote names."""
    found = good_report(100)
    found.environment.update(machine="A CPU, 2 cores", commit="0123456789ab-dirty", tolerance=0.1)
    found.runs["O1_x|y"] = made_run("O1", 100)
    for run in found.runs.values():
        run.timings = [made_run("O1", 20) for _ in range(3)]
    advice.advise(found)
    return found


def cells(text):
    """Return the rows of a table in Markdown, without the rule."""
    lines = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown_has_a_row_for_each_level_and_a_footnote_of_where_it_was_measured():
    text = to_markdown(report())
    rows = cells(text)
    assert len({len(row) for row in rows}) == 1
    assert [row[0] for row in rows] == ["level", "O0", "O1", "O2", "O3", r"O1\_x\|y"]
    assert rows[0][-1] == "within 10 %" and rows[2][-1] in ("shown", "not shown", "refuted") and rows[1][-1] == ""
    for told in ("A CPU, 2 cores", "torch 2.13.0+cpu", "1 to 3 seeds from 0", "commit 0123456789ab-dirty", "3 rounds"):
        assert told in text
    rule = text.splitlines()[1]
    assert rule.startswith("|---|---|---:|") and rule.count("|") == len(rows[0]) + 1


def test_latex_has_the_same_cells_and_no_character_that_it_does_not_set():
    text, rows = to_latex(report()), cells(to_markdown(report()))
    lines = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert len(lines) == len(rows) and all(len(re.split(r"(?<!\\)&", line)) == len(rows[0]) for line in lines)
    assert lines[-1].startswith(r"O1\_x|y & ") and r"$\pm$" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 1
    assert text.isascii() and not re.search(r"(?<!\\)[%#_^~](?!.*usepackage)", text.partition("\n")[2])


@pytest.mark.parametrize("name", sorted(MADE))
def test_every_report_has_tables(name):
    made = MADE[name]()
    advice.advise(made)
    assert to_markdown(made).startswith("| level | verdict |") and r"\bottomrule" in to_latex(made)


def test_a_table_without_times_says_nothing_of_them():
    found = report()
    for run in found.runs.values():
        run.timings = []
    for text in (to_markdown(found), to_latex(found), tables.levels(found, summarize(found)).title):
        assert "edians of the last tenth" in text and "speed" not in text and "Times" not in text and "GPU" not in text


def test_several_losses_have_rows_of_their_own():
    rows = cells(to_markdown(two_losses_report()))
    assert [row[2] for row in rows] == ["loss", "0", "1", "0", "1"]


def test_the_tables_are_written_to_files(tmp_path, capsys):
    path, markdown, latex = [str(tmp_path / name) for name in ("a.json", "table.md", "table.tex")]
    report().save(path)
    assert main(["report", path, "--markdown", markdown, "--latex", latex]) == 0
    assert capsys.readouterr().err == f"wrote {markdown}\nwrote {latex}\n"
    with open(markdown, encoding="utf-8") as file:
        assert file.read() == to_markdown(Report.load(path))
