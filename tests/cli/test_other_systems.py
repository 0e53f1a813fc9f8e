"""What Windows does otherwise: no exec, Ctrl-C for every process of a console, and files that are not UTF-8."""

import importlib
import io
import signal
import sys
import types

import pytest

from ampcompat import cli
from ampcompat.cli import run_command


@pytest.fixture
def windows(monkeypatch):
    """Let ``run`` take this system for Windows; pathlib and others look at ``os.name`` too, so only there."""
    names = dict(vars(run_command.os), name="nt", execv=lambda *_: pytest.fail("exec does not wait on Windows"))
    monkeypatch.setattr(run_command, "os", types.SimpleNamespace(**names))


def test_without_exec_run_waits_for_the_script_and_leaves_ctrl_c_to_it(windows, monkeypatch):
    calls, before = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(OSError):
        run_command._exec(["/no/such/interpreter"])
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.setattr(
        run_command.subprocess, "call", lambda command: calls.append(signal.getsignal(signal.SIGINT)) or 7
    )
    assert run_command._exec([sys.executable, "script.py"]) == 7
    assert calls == [signal.SIG_IGN] and signal.getsignal(signal.SIGINT) is before


def test_output_may_be_in_an_encoding_that_lacks_characters(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    info = importlib.import_module("ampcompat.cli.info_command")
    monkeypatch.setattr(info, "info", lambda arguments: print("−0.01 % × 2"))
    cli.main(["info"])
    assert written.getvalue().decode("cp1252").splitlines() == ["?0.01 % × 2"]
