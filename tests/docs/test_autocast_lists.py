"""The table of what autocast casts by release is made from its records, which have what the installed torch lists."""

import importlib
import os
import sys

import pytest
import torch

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))


@pytest.fixture
def autocast_lists(monkeypatch):
    """Return .ci/autocast_lists.py as a module."""
    monkeypatch.setattr(sys, "path", [os.path.join(ROOT, ".ci")] + sys.path)
    return importlib.import_module("autocast_lists")


def test_the_table_has_a_row_for_each_function_whose_rule_has_changed(autocast_lists):
    table = autocast_lists.table(autocast_lists.read_records())
    assert "| `torch.einsum` | input to 1.11, then half | input | half |\n" in table
    assert "| `torch.mm` |" not in table, "half in every release"


def test_the_lists_of_the_installed_torch_are_recorded(autocast_lists):
    installed = os.path.join(os.path.dirname(torch.__file__), *autocast_lists.LISTS.split("/")[1:])
    records, release = autocast_lists.read_records(), autocast_lists.minor(torch.__version__)
    if not os.path.exists(installed) or release not in records:
        pytest.skip("no lists of this torch are recorded")
    with open(installed, encoding="utf-8") as file:
        assert autocast_lists.lists_of(file.read()) == records[release]


def test_lists_are_read_by_device_and_rule(autocast_lists):
    source = """
class AutocastTestLists:
    def __init__(self, dev):
        self.torch_fp16 = [("mm", (1, 2)), ("mm", (3,)), ("_conv", f(dev), *more)]
        self.linalg_fp16 = [("linalg_vecdot", x + y)]
        self.methods_expect_builtin_promote = [("__eq__", x, torch.bool)]
        self.banned = [("binary_cross_entropy", x, torch._C._nn)]
class AutocastCPUTestLists:
    def __init__(self, dev):
        self.nn_16 = [("linear", x, {})]
"""
    assert autocast_lists.lists_of(source) == {
        "CUDA": {
            "torch.mm": "half",
            "torch._conv": "half",
            "torch.linalg.vecdot": "half",
            "torch.Tensor.__eq__": "widest",
            "torch.nn.functional.binary_cross_entropy": "refused",
        },
        "CPU": {"torch.nn.functional.linear": "half"},
    }


def test_records_are_written_as_they_were_read(autocast_lists, monkeypatch, tmp_path):
    records, text = autocast_lists.read_records(), autocast_lists.RECORDS.read_text(encoding="utf-8")
    monkeypatch.setattr(autocast_lists, "RECORDS", tmp_path / "records.json")
    autocast_lists.write_records(records)
    assert autocast_lists.RECORDS.read_text(encoding="utf-8") == text and autocast_lists.read_records() == records


def test_a_cell_says_the_last_release_of_each_rule(autocast_lists):
    assert autocast_lists.in_words({"1.9": "half", "1.10": "half"}) == "half"
    assert autocast_lists.in_words({"1.9": "half", "1.10": "half", "2.0": "input"}) == "half to 1.10, then input"
