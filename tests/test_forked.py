"""Processes that tests start: none is left when pytest is interrupted."""

import multiprocessing
import signal
import sys
import time

import pytest
from helpers import forked


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_end_all_kills_what_was_started(tmp_path):
    (tmp_path / "endless.py").write_text("import time; open(__file__ + '.started', 'w').close(); time.sleep(1000)")
    process = forked.start(forked.script, tmp_path / "endless.py")
    while not (tmp_path / "endless.py.started").exists() and process.is_alive():
        time.sleep(0.05)
    forked.end_all()
    assert process.exitcode == -signal.SIGKILL and process not in multiprocessing.active_children()
