"""How a child process ends, as its parent records it."""

import json
import os
import types

import pytest

from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.abtest.subprocess_run import SubprocessRun

STEP = {"step": 0, "loss": [[0, 1.0]], "scale": [[0, 1.0]], "skipped": False, "seconds": 0.1, "samples": None}


@pytest.mark.parametrize(
    "code, events, ends",
    [
        (0, [STEP], ("ok", None)),
        (0, [], ("failed", "its process ended with exit code 0 and without an error message")),
        (3, [STEP], ("failed", "its process ended with exit code 3 and without an error message")),
        (-9, [STEP], ("failed", "its process was killed by SIGKILL")),
        (1, [STEP, {"end": "failed", "error": "ValueError"}], ("failed", "ValueError")),
    ],
)
def test_a_process_without_an_event_of_its_end_is_judged_by_its_exit_code(monkeypatch, code, events, ends):
    def start(self, folder, output):
        with open(os.path.join(folder, "events"), "w") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)
        return types.SimpleNamespace(poll=lambda: code, returncode=code)

    monkeypatch.setattr(SubprocessRun, "_open", start)
    child = SubprocessRun(PlannedRun("O0", [__file__]))
    child.run_to_end(lambda event: None)
    assert (child.run.status, child.run.error) == ends
