"""A run ends after the process that started it, whatever its own end has to wait for."""

import os
import subprocess
import sys

import pytest
from helpers.processes import environment

SLOW_END = """
import sys
import threading
import time
from ampcompat.abtest.running import script_path_start

class Slow:
    def __del__(self, sleep=time.sleep):  # while Python ends, when other threads no longer run
        sleep(600)

sys.slow = Slow()
threading.Thread(target=script_path_start._end_after, args=(0, int), daemon=True).start()
time.sleep(600)
"""


@pytest.mark.skipif(os.name != "posix", reason="Windows keeps the id of a parent that has ended")
def test_a_process_ends_though_its_interpreter_is_slow_to_end():
    done = subprocess.run([sys.executable, "-c", SLOW_END], env=environment(), stderr=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 1
