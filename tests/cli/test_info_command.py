"""``info``, called in this process."""

import functools
import importlib

import pytest
import torch

from ampcompat import cli
from ampcompat.cli.info_command import RULES
from ampcompat.engine.op_table import expansion


@pytest.fixture
def lines(capsys):
    assert cli.main(["info", "--table"]) == 0
    return capsys.readouterr().out.splitlines()


def resolve(dotted):
    if dotted.startswith("torch._VF."):
        return getattr(torch.nn.modules.rnn._VF, dotted.rpartition(".")[2])
    for depth in range(dotted.count("."), 0, -1):
        parts = dotted.split(".")
        try:
            owner = importlib.import_module(".".join(parts[:depth]))
        except ImportError:
            continue
        return functools.reduce(getattr, parts[depth:], owner)
    raise AssertionError(dotted)


def test_the_backend_of_each_level_that_casts_is_told(lines):
    assert lines[2].startswith("torch ")
    for level in ("O1 (float16)", "O4 (bfloat16)"):
        (line,) = [line for line in lines if line.startswith(level)]
        assert "because" in line


@pytest.mark.parametrize("stated", ["auto", "off"])
def test_each_half_dtype_has_a_line_that_says_whether_the_cpu_emulates_it_and_why(stated, capsys, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_HALF_MATH", stated)
    assert cli.main(["info"]) == 0
    lines = {line[:22].strip(): line[25:] for line in capsys.readouterr().out.splitlines()}
    emulated = "emulated (computed in float32, inputs and results rounded), because"
    own = "torch's own kernels, because"
    assert lines["float16 on this CPU"].startswith(emulated if stated == "auto" else own)
    assert "because" in lines["bfloat16 on this CPU"]
    assert lines["AMPCOMPAT_HALF_MATH"] == stated


def test_the_table_lists_only_functions_that_this_torch_has(lines):
    start = next(number for number, line in enumerate(lines) if line.split()[:2] == ["rule", "function"])
    rows = [line.split()[:2] for line in lines[start + 1 :]]
    assert ["half", "torch.nn.functional.linear"] in rows and ["float", "torch.Tensor.exp"] in rows
    for rule, function in rows:
        assert callable(resolve(function)), function
        assert rule in RULES


def test_the_table_explains_every_rule(lines):
    assert set(RULES) == set(expansion.RULES)
    for rule, meaning in RULES.items():
        assert f"{rule:14} : {meaning}" in lines
