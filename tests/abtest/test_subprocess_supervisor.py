"""How a child process ends, as its parent records it."""

import json
import os
import types

import pytest

from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.abtest.running.subprocess_supervisor import SubprocessRun, _tail

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


def test_a_file_in_the_current_folder_hides_no_module_that_torch_or_ampcompat_imports(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "torch.py").write_text("raise RuntimeError('another torch')\n")
    (tmp_path / "train.py").write_text("import torch, sys\nsys.exit(torch.nn.Linear.__name__)\n")
    child = SubprocessRun(PlannedRun("O0", [os.path.join("..", "train.py")], folder=str(tmp_path / "here")))
    child.run_to_end(lambda event: None)
    assert child.run.error == "Linear"


def test_the_error_of_a_process_that_could_not_begin_is_the_last_line_of_its_traceback(tmp_path):
    (tmp_path / "torch.py").write_text("raise RuntimeError('another torch')\n")  # beside the script, as for Python
    (tmp_path / "train.py").write_text("")
    child = SubprocessRun(PlannedRun("O0", ["train.py"], folder=str(tmp_path)))
    child.run_to_end(lambda event: None)
    assert child.run.error == "RuntimeError: another torch" and "Traceback" in child.output


def test_what_a_script_printed_keeps_the_indentation_of_its_first_line(tmp_path):
    with open(str(tmp_path / "output"), "w+b") as output:
        output.write(b"\n  indented\nlast\n\n")
        assert _tail(output) == "  indented\nlast"
