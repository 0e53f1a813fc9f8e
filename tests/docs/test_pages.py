"""The pages under docs/: every example runs, every link leads somewhere, every command exists."""

import glob
import importlib
import os
import re
import sys

import pytest
import torch
from helpers import sharding
from helpers.half_kernels import trains_in
from helpers.processes import ROOT, read

from ampcompat import amp, sessions
from ampcompat.cli import main
from ampcompat.diagnostics.estimate import memory_report_and_estimate
from ampcompat.support.torch_compat import fake_tensors, features

#: What follows an example of which a page says what it prints.
LAST_LINE = re.compile(r"```\n\nThe last line that it prints:\n\n    (.*)\n")
PAGES = sorted(os.path.basename(path) for path in glob.glob(os.path.join(ROOT, "docs", "*.md")))


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", read("docs", page), re.DOTALL | re.MULTILINE)


@pytest.fixture
def built_pages(monkeypatch):
    """Return {name: text} of the pages that are not stored, or not wholly."""
    if sys.version_info < (3, 9):
        pytest.skip("ast.unparse, with which a page is made, came with Python 3.9")
    monkeypatch.syspath_prepend(os.path.join(ROOT, ".ci"))
    module = importlib.import_module("built_pages")
    return dict(module.pages(), **{"machine.md": module.with_tables(read("docs", "machine.md"))})


def numbers_as_0(text):
    return re.sub(r"[0-9.]+", "0", text)


def links(text):
    return [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]


@pytest.fixture
def a_rank_alone(monkeypatch):
    """The variables that torchrun sets, for one process; the system finds a port."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.skipif(not trains_in(torch.float16), reason="this torch cannot train in float16 on a CPU")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_the_examples_of_a_page_run_one_after_another_and_print_the_last_line_it_says(
    page, tmp_path, monkeypatch, a_rank_alone, capsys
):
    if page == "data_parallel.md" and sharding.why_not():
        pytest.skip(sharding.why_not())
    if page == "memory.md" and not features.is_version_within(oldest=fake_tensors.OLDEST):
        pytest.skip(f"fake tensors go through a step since torch {fake_tensors.OLDEST}")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, source in enumerate(blocks(page), 1):
        exec(compile(source, f"{page}, example {number}", "exec"), names)
        said = LAST_LINE.match(read("docs", page).partition(source)[2])
        printed = capsys.readouterr().out.splitlines()
        if said:  # its digits are those of one machine
            assert numbers_as_0(printed[-1]) == numbers_as_0(said.group(1))
    assert list(tmp_path.iterdir()) == [], "it wrote into the reader's folder"


def test_a_page_says_what_an_example_prints():
    assert LAST_LINE.search(read("docs", "ab.md"))


def test_every_page_has_an_example():
    assert [page for page in PAGES if not blocks(page)] == []


def test_the_readme_and_the_site_lead_to_every_page():
    assert {"docs/" + page for page in PAGES} - set(links(read("README.md"))) == set()
    assert [page for page in PAGES if f": {page}\n" not in read("mkdocs.yml")] == []


def test_links_lead_to_pages(built_pages):
    folder = os.path.join(ROOT, "docs")
    for page, text in dict({page: read("docs", page) for page in PAGES}, **built_pages).items():
        left = [link for link in links(text) if link not in built_pages]
        assert [link for link in left if not os.path.exists(os.path.join(folder, link))] == [], page
        assert [link for link in left if link.startswith("..")] == [], f"{page}: the site has docs/ only"


def test_the_first_page_of_the_site_is_the_beginning_of_the_readme(built_pages):
    first = built_pages["index.md"]
    assert first.startswith("# ampcompat\n") and "[how](apex_scripts.md)" in first and "](docs/" not in first
    assert first.count("\n") > 40


def test_the_page_on_machines_has_the_tables_made_from_records(built_pages):
    page = built_pages["machine.md"]
    assert "\n| torch | Python | run |" in page and "\n| function | autocast on CUDA |" in page
    assert "<!-- table" not in page


def test_the_example_of_the_page_on_reports_runs(built_pages):
    (source,) = re.findall(r"^```python\n(.*?)^```", built_pages["report_format.md"], re.DOTALL | re.MULTILINE)
    exec(compile(source, "report_format.md", "exec"), {})


def test_the_architecture_page_names_every_folder_and_only_paths_that_exist():
    package, page = os.path.join(ROOT, "ampcompat"), read("docs", "architecture.md")
    paths = {path.rstrip("/") for path in re.findall(r"`([\w/]+(?:/|\.(?:py|md)))`", page)}
    assert [path for path in paths if not any(os.path.exists(os.path.join(top, path)) for top in (package, ROOT))] == []
    folders = {
        os.path.relpath(folder, package).replace(os.sep, "/")
        for top in ("*", "engine/*", "launch/*", "observers/*", "support/*", "diagnostics/*", "abtest/*")
        for folder in glob.glob(os.path.join(package, top, ""))
        if not folder.rstrip(os.sep).endswith("__pycache__")
    }
    assert len(folders) > 20
    assert folders - paths == set()


def test_the_site_takes_no_sentence_of_a_docstring_for_a_type():
    """What stands before a colon in the first line of "Returns:" is set as a type."""
    functions = [
        getattr(module, name) for module in (amp, sessions, memory_report_and_estimate) for name in module.__all__
    ]
    returned = [re.search(r"(?:Returns|Yields):\n(.*)", each.__doc__ or "") for each in functions]
    assert [found.group(1) for found in returned if found and re.search(r":( |$)", found.group(1))] == []


def test_commands_and_their_options_exist(capsys):
    commands = {}
    for page in PAGES:
        for line in re.findall(r"(?m)(?:^ {4}(?:\w+=\S+ )?|`|\$ |-m )ampcompat ([a-z]+[^`\n]*)", read("docs", page)):
            name, own = line.split()[0], re.sub(r'"[^"]*"', "", line).partition(".py")[0]  # without texts in quotes
            commands.setdefault(name, set()).update(re.findall(r"--[\w-]+", own))
    assert {"run", "ab", "info"} <= set(commands)
    for name, options in commands.items():
        with pytest.raises(SystemExit) as left:
            main([name, "--help"])
        printed = capsys.readouterr().out
        assert left.value.code == 0
        assert {option for option in options if option not in printed} == set(), name
