"""The README: its commands run, its links lead somewhere, its figures are those of RESULTS.md."""

import importlib.util
import os
import re
import shutil
import sys

import pytest
from helpers.processes import ROOT, read

from ampcompat.cli import main

README = read("README.md")


def blocks(text, kind):
    """Return the blocks of a kind, such as terminals."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def module_of(*path):
    """Return a module that is a file of this checkout; it may import those beside it."""
    file = os.path.join(ROOT, *path)
    spec = importlib.util.spec_from_file_location(os.path.splitext(path[-1])[0], file)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(file))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(os.path.dirname(file))
    return module


@pytest.mark.parametrize("name", ["optimizers_tried", "models_tried"])
def test_the_numbers_of_what_was_tried_are_those_of_the_table(name):
    (sentence,) = re.findall(rf"^- .*benchmarks/{name}\.md.*(?:\n  .*)*", README, re.MULTILINE)
    table = read("benchmarks", name + ".md").split("## What deviates")[0]
    shown = re.findall(r"(?<![\w.])\d+(?![\w.])", sentence)
    assert len(shown) > 3
    assert set(shown) <= set(re.findall(r"\d+", table))


def test_its_figures_are_those_of_the_results():
    figures = module_of("benchmarks", "readme_figures.py").figures()
    for line in figures:
        assert line in README.splitlines(), "run `python benchmarks/readme_figures.py` and copy its rows"
    (forward,) = re.findall(r"^\| forward .*? \| (\S+) \|", figures[0])
    least, most = re.search(r"\| (\S+) to \S+ \| \S+ to (\S+) \|", figures[1]).groups()
    assert f"takes {forward} times as long" in README and f"{least} to {most} times as long" in README


def test_its_links_lead_to_files():
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert [link for link in links if not os.path.exists(os.path.join(ROOT, link))] == []


def test_the_links_of_a_release_are_absolute():
    text = "[a](docs/a.md#b) ![c](d.png) [e](https://f.g) [h](#i)\n"
    expected = "[a](https://x/y/blob/v1/docs/a.md#b) ![c](https://x/y/raw/v1/d.png) [e](https://f.g) [h](#i)\n"
    absolute = module_of(".ci", "absolute_links.py").absolute
    assert absolute(text, "https://x/y", "v1") == expected
    left = [link for link in re.findall(r"\]\(([^)]+)\)", absolute(README, "https://x/y", "v1")) if "://" not in link]
    assert left == []


def test_the_table_of_supported_modules_is_that_of_the_alias():
    support = module_of(".ci", "readme_support.py")
    table = read("docs", "apex_scripts.md").partition(support.BEGIN)[2].partition(support.END)[0].splitlines()
    assert table == support.rows(), "run `python .ci/readme_support.py`"


def test_the_path_has_the_commands_of_its_script_and_what_the_quick_ones_print(tmp_path, monkeypatch, capsys):
    pytest.importorskip("libcst", reason="migrate needs libcst")
    path = module_of("benchmarks", "readme_path.py")
    levels, console = blocks(README, "console")
    assert levels.splitlines()[0] == f"$ ampcompat {path.AB[0]}", "run `python benchmarks/readme_path.py`"
    assert "\nO3     rejected " in levels
    shown = dict(each.split("\n", 1) for each in console.split("$ ampcompat ")[1:])
    assert list(shown) == [command for command, _ in path.STEPS], "run `python benchmarks/readme_path.py`"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    shutil.copy(os.path.join(ROOT, "examples", path.SCRIPT), str(tmp_path))
    for command, pattern in path.STEPS:
        if command.split()[0] in ("check", "migrate"):
            main(command.split())
            printed = capsys.readouterr()
            lines = path.shown(printed.out + printed.err, pattern)
            assert set(lines) - {"…"} == set(shown[command].splitlines()) - {"…"}
        else:
            assert shown[command].strip(" …\n"), "nothing matched: run `python benchmarks/readme_path.py`"
