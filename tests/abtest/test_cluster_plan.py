"""``ab --plan`` and ``report DIR``: one command a run, whose records together are the report of a series in one go."""

import os
import subprocess

import pytest
from helpers.processes import environment

from ampcompat.abtest import Report, to_text
from ampcompat.abtest.report_data import Run
from ampcompat.abtest.running import cluster_plan
from ampcompat.abtest.running.subprocess_supervisor import SubprocessRun
from ampcompat.cli import ab_command, ab_runs, main
from ampcompat.errors import AmpError

SERIES = ["--levels", "O0,O1", "--variant", "my own: --opt-level O1 loss_scale=8", "training.py", "--lr", "0.1"]


class MadeRun(SubprocessRun):
    """Records a run whose losses its name determines, without training."""

    def run_to_end(self, on_event):
        base = sum(map(ord, self.planned.label)) / 1000
        self.environment = {"torch": "2.0", "device": "cpu"}
        identity = dict(self.planned.identity(), **self.environment)
        self.run = Run(loss=[(step, 0, base + 1 / (step + 1)) for step in range(30)], identity=identity)
        self.run.scale, self.run.step_seconds = [(step, 0, 1.0) for step in range(30)], [0.01] * 30


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of a plan of O0 with its control, O1 and a variant, whose runs are made."""
    monkeypatch.setattr(cluster_plan, "SubprocessRun", MadeRun)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training.py").write_text("import apex.amp\n")
    assert ab_command.ab(["--plan", "runs of it", *SERIES]) == 0
    return str(tmp_path / "runs of it")


def commands(folder):
    with open(os.path.join(folder, cluster_plan.COMMANDS)) as file:
        return file.read().splitlines()


def test_each_command_writes_the_record_of_one_run(folder, capsys):
    names = ["O0", "O1", "my-own", "O0-seed-2"]
    assert [line.split()[-1] for line in commands(folder)] == names
    for name in reversed(names):
        assert main(["planned", folder, name]) == 0
    assert sorted(os.listdir(folder)) == sorted(
        [name + ".json" for name in names] + [cluster_plan.PLAN, cluster_plan.COMMANDS]
    )
    report, missing = cluster_plan.collect(folder)
    assert missing == [] and list(report.runs) == ["O0", "O1", "my own"]
    assert [len(run.repeats) for run in report.runs.values()] == [1, 0, 0]
    assert report.environment["script"] == "training.py --lr 0.1" and report.environment["torch"] == "2.0"


def test_the_records_together_are_the_report_of_one_go(folder, capsys, monkeypatch):
    monkeypatch.setattr(ab_runs, "SubprocessRun", MadeRun)
    ab_command.ab(["--timing-steps", "0", "--json", "whole.json", *SERIES])
    for name in ("O1", "O0-seed-2", "my-own", "O0"):
        main(["planned", folder, name])
    whole, report = Report.load("whole.json"), cluster_plan.collect(folder)[0]
    for run in [each for level in report.runs.values() for each in [level] + level.repeats]:
        run.identity["options"]["verbosity"] = None  # the record's own
    assert to_text(report, 100, True) == to_text(whole, 100, True)
    assert report.environment == whole.environment and report.advice == whole.advice
    assert [run.loss for run in report.runs.values()] == [run.loss for run in whole.runs.values()]


def test_report_prints_what_there_is_and_what_is_missing(folder, capsys):
    main(["planned", folder, "O0"])
    capsys.readouterr()
    assert main(["report", folder]) == 0
    printed = capsys.readouterr().out
    assert "Missing: O1, my own, O0 seed 2." in printed and "O0 " in printed


def test_a_report_of_a_plan_of_which_nothing_has_run_is_one_line(folder, error_line, capsys):
    capsys.readouterr()
    told = f"ampcompat report: error: none of 4 runs is there yet: run {os.path.join(folder, cluster_plan.COMMANDS)}\n"
    assert error_line("report", folder) == told


def test_a_repeat_before_the_first_run_is_missing_and_not_judged(folder):
    for name in ("O0-seed-2", "O1"):
        main(["planned", folder, name])
    report, missing = cluster_plan.collect(folder)
    assert missing == ["O0", "my own"]
    assert report.runs["O0"].status == "interrupted" and report.runs["O0"].repeats[0].status == "ok"
    assert "O1" in to_text(report, 100)


def test_a_record_without_its_run_is_one_line(folder, capsys, error_line):
    main(["planned", folder, "O0"])
    Report(runs={"O1": Run()}).save(os.path.join(folder, "O0.json"))
    capsys.readouterr()
    assert "O0.json does not have the run O0: do it again" in error_line("report", folder)


def test_a_record_of_a_script_that_changed_after_the_plan_is_an_error(folder, tmp_path):
    (tmp_path / "training.py").write_text("print('another')\n")
    main(["planned", folder, "O1"])
    with pytest.raises(AmpError, match="O1.json has runs that this command would not repeat: script was"):
        cluster_plan.collect(folder)


@pytest.mark.parametrize("arguments, says", [(["O9"], "plans no run 'O9'"), ([], "required: NAME")])
def test_a_wrong_command_is_one_line(folder, capsys, error_line, arguments, says):
    capsys.readouterr()
    assert says in error_line("planned", folder, *arguments)


def test_a_damaged_or_absent_plan_is_one_line(folder, capsys, error_line, tmp_path):
    capsys.readouterr()
    path = tmp_path / folder / cluster_plan.PLAN
    for content, says in (('{"runs": [{}]}', "is damaged"), ("", "is damaged"), (None, "Expected a folder of")):
        path.unlink() if content is None else path.write_text(content)
        assert says in error_line("report", folder)


def test_a_command_of_the_file_runs_in_a_shell(folder):
    (line,) = [line for line in commands(folder) if line.endswith(" O1")]
    done = subprocess.run(line, shell=True, env=environment(), stdout=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 1 and "O1: failed: " in done.stdout and "nothing to record" in done.stdout
    assert Report.load(os.path.join(folder, "O1.json")).runs["O1"].identity["arguments"] == ["--lr", "0.1"]
