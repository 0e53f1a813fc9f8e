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
