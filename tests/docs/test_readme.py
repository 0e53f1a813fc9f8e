"""The README: its script and commands run, its links lead somewhere, its figures are those of RESULTS.md."""

import importlib.util
import os
import re

import pytest
import torch
from helpers import forked
from helpers.half_kernels import trains_in
from helpers.processes import ROOT


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


README = read("README.md")


@pytest.mark.skipif(not trains_in(torch.float16), reason="this torch cannot train in float16 on a CPU")
def test_its_script_runs_by_its_commands_and_prints_what_they_show(tmp_path):
    (script,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(script)
    (console,) = re.findall(r"^```console\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    for shown in console.split("$ ampcompat ")[1:]:
        typed, *output = shown.splitlines()
        command, *arguments, script = typed.split()
        assert (command, script) == ("run", "train.py")
        done = forked.run(forked.command, *(arguments + [tmp_path / script]))
        assert done.returncode == 0, done.stderr
        for line in output:
            assert line.replace("…", "") in done.stdout


def test_its_figures_are_those_of_the_results():
    path = os.path.join(ROOT, "benchmarks", "readme_figures.py")
    spec = importlib.util.spec_from_file_location("readme_figures", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    figures = module.figures()
    for line in figures:
        assert line in README.splitlines(), "run `python benchmarks/readme_figures.py` and copy its rows"
    least, most = re.search(r"\| (\S+) to \S+ \| \S+ to (\S+) \|", figures[0]).groups()
    assert f"take {least} to {most} times as long" in README


def test_its_links_lead_to_files():
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert [link for link in links if not os.path.exists(os.path.join(ROOT, link))] == []


def test_the_supported_modules_are_those_of_the_alias():
    site = os.path.join(ROOT, "ampcompat", "apex", "site")
    carried = {"apex." + name for name in os.listdir(os.path.join(site, "apex")) if not name.startswith("_")}
    carried |= {name[: -len(".py")] for name in os.listdir(site) if name.endswith(".py")}
    table = README.partition("## Supported parts of Apex")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
    assert carried == named - {"apex.transformer"}
    contrib = os.listdir(os.path.join(site, "apex", "contrib"))
    (row,) = [row for row in rows if row.startswith("| `apex.contrib`")]
    assert set(re.findall(r"`(\w+)`", row)) == {name for name in contrib if not name.startswith("_")}
