"""``ampcompat selftest``: its table, exit code and JSON; a fault that is put in is found and named."""

import functools
import json
import re

import pytest
import torch
from helpers import half_kernels

import ampcompat
from ampcompat.cli import main
from ampcompat.diagnostics.selftest import runner, training
from ampcompat.diagnostics.selftest.results import FAILED, OK, CheckResult
from ampcompat.engine.casting import wrappers
from ampcompat.engine.loss_scaling.loss_scaler import LossScaler
from ampcompat.engine.loss_scaling.overflow_check import StepSkips
from ampcompat.engine.op_table import expansion
from ampcompat.errors import AmpError

TRAINS_HALF = half_kernels.trains_in(torch.float16) and half_kernels.trains_in(torch.bfloat16)
needs_half = pytest.mark.skipif(not TRAINS_HALF, reason="this torch cannot train in half on a CPU")


@pytest.fixture(autouse=True)
def real_half(monkeypatch):
    """Take the levels' own dtypes, where the suite lets float32 stand in for half."""
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)


@pytest.mark.filterwarnings("ignore")  # of torch, about features that a row tries out
def test_the_quick_run_finds_no_fault_here(capsys, tmp_path):
    path = tmp_path / "report.json"
    code = main(["selftest", "--device", "cpu", "--quick", "--json", str(path)])
    said = capsys.readouterr().out
    report = json.loads(path.read_text(encoding="utf-8"))
    failed = [row for row in report["rows"] if row["status"] == "failed"]
    assert failed == [] and code == 0
    assert {row["check"] for row in report["rows"]} == {name for name, _ in runner.CHECKS}
    assert report["environment"]["torch"] == torch.__version__ and report["device"] == "cpu"
    assert re.search(r"^No check failed: \d+ ok", said, re.MULTILINE)
    for row in report["rows"]:
        assert "{:11}  {:26}  {:8}".format(row["check"], row["case"], row["status"]) in said
    if TRAINS_HALF:
        assert {row["case"] for row in report["rows"] if row["check"] == "training"} == set(map(str, training.SETTINGS))


def rows_of(name, quick=True):
    return list(dict(runner.CHECKS)[name]("cpu", quick))


@needs_half
def test_a_function_in_a_wrong_dtype_is_named(monkeypatch):
    monkeypatch.setitem(wrappers._WRAPPERS, expansion.PROMOTE, wrappers._float)
    for row in rows_of("conformance"):
        assert row.status == FAILED
        assert row.figures["wrong"]["torch.addcmul low"] == "result torch.float32 instead of torch.float16"


@needs_half
def test_a_cast_that_is_missing_is_no_missing_kernel(monkeypatch):
    """Without it torch refuses mixed inputs, in the words with which old torch says that it lacks a kernel."""
    monkeypatch.setenv("AMPCOMPAT_HALF_MATH", "off")

    def uncast(function, casts):
        return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))

    monkeypatch.setitem(wrappers._WRAPPERS, expansion.HALF, uncast)
    row = [row for row in rows_of("conformance") if row.case == "patched, float16"][0]
    assert row.status == FAILED
    lacking = ("is now removed", "not implemented for 'Half'")
    assert all(any(words in reason for words in lacking) for reason in row.figures["left_out"].values())
    assert any(
        "expected scalar type" in problem or "same dtype" in problem for problem in row.figures["wrong"].values()
    )


@needs_half
def test_gradients_that_stay_scaled_fail_the_training(monkeypatch):
    monkeypatch.setattr(LossScaler, "unscale_", lambda self, groups, scale: None)
    found = {row.case: row.status for row in rows_of("training")}
    assert found["O0"] == found["O5"] == OK
    assert found["O1 native"] == found["O1 patched"] == FAILED


@needs_half
def test_an_overflow_that_is_not_skipped_is_found(monkeypatch):
    monkeypatch.setattr(StepSkips, "take", lambda self: False)
    found = rows_of("overflow")
    assert found and all(row.status == FAILED and "weights CHANGED" in row.found for row in found)


# -- the command -------------------------------------------------------------------------------------------------------


def breaks(device, quick):
    raise ValueError("first line\nsecond line")


def test_a_failed_row_says_what_to_do_and_the_exit_code_is_1(monkeypatch, capsys):
    checks = [
        ("one", lambda device, quick: [CheckResult("one", "case", FAILED, "wrong " * 40, "Do this.")]),
        ("two", breaks),
        ("three", lambda device, quick: [CheckResult("three", "case", OK, "right", "Do nothing.")]),
    ]
    monkeypatch.setattr(runner, "CHECKS", checks)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["selftest", "--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 100
    assert re.search(r"^one +case +FAILED +wrong", said, re.MULTILINE) and "What to do: Do this." in said
    assert re.search(r"^two +all +FAILED +ValueError: first line$", said, re.MULTILINE)
    assert re.search(r"^three +case +ok +right$", said, re.MULTILINE) and "Do nothing" not in said
    assert said.splitlines()[-1].startswith("Some checks FAILED: 1 ok, 2 failed (")


def test_an_open_session_is_refused():
    with ampcompat.session("O0"), pytest.raises(AmpError, match="ampcompat.reset()"):
        runner.run("cpu", write=lambda line: None)


def test_ctrl_c_ends_it_in_one_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    assert main(["selftest", "--device", "cpu"]) == 130
    assert capsys.readouterr().err == "ampcompat selftest: interrupted\n"
