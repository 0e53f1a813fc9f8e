"""The commands at the top of a page print what the page shows. ``train.py`` is the first script of a page."""

import importlib.util
import os
import re
import runpy
import shutil

import pytest
import torch
from helpers import forked
from helpers.half_kernels import trains_in
from helpers.processes import ROOT, environment

from ampcompat.cli import main
from ampcompat.launch.forced_levels.forced_level import is_supported


def needs(module):
    """Return a mark of tests that need a module."""
    found = importlib.util.find_spec(module)
    return pytest.mark.skipif(found is None, reason="needs " + module)


needs_forced_levels = pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1")


def as_printed(line):
    """Return a line without what is left out."""
    return line.replace("…", "")


def without_digits(line):
    """Return a line without the digits of one machine, the widths of a table and what is left out."""
    return re.sub(r"\s+", " ", re.sub(r"[0-9.]+", "0", as_printed(line))).strip()


#: A page, the page with its script, and what is compared of the lines that it shows.
PAGES = [
    ("apex_scripts.md", "apex_scripts.md", as_printed),
    ("differences.md", "differences.md", as_printed),
    ("mmcv.md", "mmcv.md", without_digits),
    ("machine.md", "machine.md", without_digits),
    ("checkpoints.md", "checkpoints.md", without_digits),
    pytest.param("data_parallel.md", "data_parallel.md", without_digits, marks=needs("torch.distributed.run")),
    pytest.param("migrate.md", "apex_scripts.md", as_printed, marks=needs("libcst")),
    pytest.param("forecast.md", "forecast.md", without_digits, marks=needs_forced_levels),
    pytest.param("levels.md", "levels.md", without_digits, marks=needs_forced_levels),
    pytest.param("scripts_without_apex.md", "scripts_without_apex.md", as_printed, marks=needs_forced_levels),
    pytest.param("watching.md", "watching.md", without_digits, marks=needs_forced_levels),
]


def first_block(page, kind):
    with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as file:
        text = file.read()
    return re.search(rf"^```(?:{kind})\n(.*?)^```", text, re.DOTALL | re.MULTILINE).group(1)


def do(folder, program, *arguments):
    """Do in a folder what a command of a page does."""
    os.chdir(folder)
    if program == "python":
        runpy.run_path(arguments[0], run_name="__main__")
    elif program == "torchrun":
        importlib.import_module("torch.distributed.run").main(arguments)
    elif arguments[0] == "run":
        forked.command(*arguments[1:])
    else:
        forked.fork_runs()  # those of `forecast` and `audit`
        main(list(arguments))


@pytest.mark.skipif(not trains_in(torch.float16), reason="this torch cannot train in float16 on a CPU")
@pytest.mark.parametrize("page, page_of_script, compared", PAGES)
def test_the_first_commands_of_a_page_print_what_it_shows(page, page_of_script, compared, tmp_path):
    (tmp_path / "train.py").write_text(first_block(page_of_script, "py|python"))
    for name in ("char_transformer.py", "resume.py"):
        shutil.copy(os.path.join(ROOT, "examples", name), str(tmp_path))
    for shown in first_block(page, "console").split("$ ")[1:]:
        typed, *output = shown.splitlines()
        for _ in range(3):
            done = forked.run(do, str(tmp_path), *typed.split(), env=environment(COLUMNS="100"))
            # On a busy machine gloo's threads can end a rank of plain torch with it, too, after its last line.
            if "(SIGABRT)" not in done.stderr:
                break
        assert done.returncode == 0, done.stderr
        printed = compared(done.stdout + done.stderr)
        assert [line for line in output if compared(line) not in printed] == []
