"""``ab``'s series of runs: variants, resumed series, times. Few tests start real processes."""

import argparse
import inspect
import json
import os
import signal
import sys
import time

import pytest
from helpers import forked, half_kernels, precision
from helpers.processes import environment

from ampcompat import amp
from ampcompat.abtest import Report
from ampcompat.abtest.judging import summary
from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.cli import ab_command, ab_options, ab_runs, ab_variants, main
from ampcompat.support.torch_compat import features


class MadeRun(ab_runs.SubprocessRun):
    """A run that ends at once, with losses that its seed and repeat determine; ``begun`` lists all of them.

    ``timed`` lists the short runs for times, and ``names`` the names of both.
    """

    begun, timed, names = [], [], []
    broken = ()  # labels of runs that fail
    took = 0.0  # seconds
    versions = {"torch": "2.0", "device": "cpu"}

    def run_to_end(self, on_event):
        label, base = self.planned.label, self.planned.seed + 10 * self.planned.repeat
        is_short = "-timing-" in self.name
        (self.timed if is_short else self.begun).append(label)
        self.names.append(self.name)
        self.environment, self.seconds = dict(self.versions), self.took
        self.run.identity.update(self.versions)
        on_event({"environment": self.versions})
        self.run.loss = [(step, 0, base + 1.0 / (step + 1)) for step in range(30)]
        self.run.scale = [(step, 0, 1.0) for step in range(30)]
        self.run.step_seconds = [0.5 if is_short else 0.01] * 30
        if label in self.broken:
            self.run.status, self.run.error = "failed", "ValueError: made to fail"


@pytest.fixture
def begun(monkeypatch):
    """Return the labels of the runs that ``ab`` begins, which are made and not trained."""
    monkeypatch.setattr(ab_runs, "SubprocessRun", MadeRun)
    for name in ("begun", "timed", "names"):
        monkeypatch.setattr(MadeRun, name, [])
    return MadeRun.begun


@pytest.fixture
def script(tmp_path):
    """Return the path of a script that exists."""
    (tmp_path / "training.py").write_text("import apex.amp\n")
    return str(tmp_path / "training.py")


# -- resume ------------------------------------------------------------------------------------------------------------


def test_resume_begins_a_file_and_then_runs_what_is_missing(begun, script, tmp_path, capsys):
    path, command = tmp_path / "report.json", ["--levels", "O0,O1", script, "--lr", "0.1"]
    assert ab_command.ab(["--resume", str(path)] + command) == 0
    assert begun == ["O0", "O1", "O0 seed 2"]
    before = Report.load(str(path))
    del begun[:]
    ab_command.ab(["--resume", str(path), "--repeats", "2"] + [command[0], "O0,O1,O2"] + command[2:])
    assert begun == ["O2", "O1 seed 2", "O2 seed 2"]
    told = capsys.readouterr().err
    assert f"{path}: 3 of 6 runs kept\n" in told and f"wrote {path}\n" in told
    assert "3 runs of the whole script: O2, O1 seed 2, O2 seed 2. Then 9 runs of 20 steps" in told
    assert "O2 (run 4 of 6): " in told and "O2 timing 3 (run 9 of 9): " in told
    after = Report.load(str(path))
    assert list(after.runs) == ["O0", "O1", "O2"] and after.runs["O0"].loss == before.runs["O0"].loss
    assert [len(run.repeats) for run in after.runs.values()] == [1, 1, 1]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_series_whose_report_cannot_be_written_goes_on_and_is_printed(begun, script, tmp_path, capsys):
    other = tmp_path / "table.md"
    assert ab_command.ab(["--levels", "O0,O1", "--json", "/dev/full", "--markdown", str(other), script]) == 1
    told = capsys.readouterr()
    assert begun == ["O0", "O1", "O0 seed 2"] and "verdict" in told.out
    assert told.err.count("warning: cannot write /dev/full: No space left on device. The series goes on.") == 1
    assert "ampcompat ab: error: cannot write /dev/full: No space left on device.\n" in told.err
    assert f"wrote {other}\n" in told.err and other.read_text().startswith("| level")


def test_runs_that_failed_are_done_again_and_without_the_baseline_the_exit_code_is_1(
    begun, script, tmp_path, monkeypatch
):
    path = tmp_path / "report.json"
    monkeypatch.setattr(MadeRun, "broken", ("O1",))
    ab_command.ab(["--resume", str(path), "--levels", "O0,O1", script])
    monkeypatch.setattr(MadeRun, "broken", ())
    del begun[:]
    assert ab_command.ab(["--resume", str(path), "--levels", "O0,O1", script]) == 0
    assert begun == ["O1"]
    report = Report.load(str(path))
    assert [run.status for run in report.runs.values()] == ["ok", "ok"] and len(report.runs["O0"].repeats) == 1
    report.runs["O0"].status = "failed"
    report.save(str(path))
    monkeypatch.setattr(MadeRun, "broken", ("O0",))
    assert ab_command.ab(["--resume", str(path), "--levels", "O0,O1", script]) == 1


def test_a_baseline_that_fails_ends_the_series(begun, script, capsys, monkeypatch):
    monkeypatch.setattr(MadeRun, "broken", ("O0",))
    assert ab_command.ab(["--levels", "O0,O1,O2,O3", script]) == 1
    assert begun == ["O0"]
    assert "No advice: the baseline O0 failed, so that there is nothing to compare with." in capsys.readouterr().out


def test_a_dry_run_says_what_would_run(begun, script, capsys):
    assert ab_command.ab(["--dry-run", "--levels", "O0,O1", "--steps", "5", "--timing-rounds", "2", script]) == 0
    told = "3 runs of 5 steps: O0, O1, O0 seed 2. Then 4 runs of 5 steps measure the speed.\n"
    assert begun == [] and capsys.readouterr().err == told


@pytest.mark.parametrize("options, rounds", [([], 0), (["--timing-rounds", "1"], 1)])
def test_speed_is_measured_where_half_is_emulated_only_on_request(
    begun, script, tmp_path, monkeypatch, options, rounds
):
    monkeypatch.setattr(MadeRun, "versions", {"torch": "2.0", "device": "cpu (float16 emulated in float32)"})
    path = tmp_path / "report.json"
    assert ab_command.ab(["--levels", "O0,O1", "--json", str(path)] + options + [script]) == 0
    assert MadeRun.timed == ["O0", "O1"] * rounds
    assert [len(run.timings) for run in Report.load(str(path)).runs.values()] == [rounds, rounds]


def test_a_single_run_that_ended_has_no_speed_where_half_is_emulated(begun, script, monkeypatch, capsys):
    monkeypatch.setattr(MadeRun, "versions", {"torch": "2.0", "device": "cpu (float16 emulated in float32)"})
    monkeypatch.setattr(MadeRun, "broken", ("O1",))
    assert ab_command.ab(["--levels", "O0,O1", script]) == 0
    told = capsys.readouterr().out
    assert "speed" not in told and "ms/step" not in told and "Take" not in told and "No level was accepted." in told


@pytest.mark.parametrize("seconds, rounds", [(0.5, 3), (9.0, 2)])
def test_there_are_fewer_rounds_where_a_run_trains_for_less_time_than_it_starts(
    begun, script, monkeypatch, seconds, rounds
):
    monkeypatch.setattr(MadeRun, "took", seconds)
    assert ab_command.ab(["--levels", "O0,O1", script]) == 0
    assert len(MadeRun.timed) == 2 * rounds


@pytest.mark.parametrize(
    "options, changed, says",
    [
        ([], "print('another')\n", "script was "),
        (["--seed", "3"], None, "seed was 0, is 3 (O0, O0 seed 2)"),
        (["--steps", "5"], None, "steps was None, is 5"),
        (["--backend", "patched", "--no-memory"], None, "options was "),
    ],
    ids=["script", "seed", "steps", "options"],
)
def test_a_file_of_another_command_is_one_error_and_stays(
    begun, script, tmp_path, capsys, error_line, options, changed, says
):
    path = tmp_path / "report.json"
    ab_command.ab(["--resume", str(path), "--levels", "O0", script])
    content = path.read_bytes()
    if changed:
        with open(script, "w") as file:
            file.write(changed)
    del begun[:]
    capsys.readouterr()
    said = error_line("ab", "--resume", path, "--levels", "O0", *options, script)
    assert says in said and begun == [] and path.read_bytes() == content


def test_another_torch_ends_a_resumed_series_before_the_file_changes(begun, script, tmp_path, capsys, monkeypatch):
    path = tmp_path / "report.json"
    ab_command.ab(["--resume", str(path), "--levels", "O0", script])
    content = path.read_bytes()
    monkeypatch.setattr(MadeRun, "versions", {"torch": "2.1", "device": "cuda (H200)"})
    with pytest.raises(SystemExit) as left:
        main(["ab", "--resume", str(path), "--levels", "O0,O1", script])
    said = capsys.readouterr().err.splitlines()[-1]
    assert left.value.code == 2
    assert "torch was '2.0', is '2.1' (O1); device was 'cpu', is 'cuda (H200)' (O1)" in said
    assert path.read_bytes() == content


def test_the_script_of_a_module_is_found_without_importing_its_package(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise ImportError('imported')\n")
    (tmp_path / "package" / "__main__.py").write_text("1\n")
    (tmp_path / "package" / "module.py").write_text("2\n")
    runs = [PlannedRun("O0", ["-m", name, "x"], folder=str(tmp_path)) for name in ("package", "package.module")]
    one, two = [run.identity() for run in runs]
    assert one["arguments"] == two["arguments"] == ["x"] and one["script"] != two["script"]


def test_a_series_that_is_killed_and_resumed_has_the_losses_of_one_that_is_not(tmp_path):
    env, begun = environment(**half_kernels.stand_in()), tmp_path / "begun"
    (tmp_path / "training.py").write_text(SECOND_RUN_WAITS)
    whole, path, script = (str(tmp_path / name) for name in ("whole.json", "report.json", "training.py"))
    command = ["--levels", "O0,O2", "--no-control", "--no-memory", "--no-diagnose", "--timing-steps", "0"]
    resuming = command + ["--resume", path, script, begun]
    process = forked.Forked(forked.ab, *resuming, env=env)
    _wait_until(lambda: begun.exists() and begun.read_text() == "O0\nO2\n")
    process.kill()
    process.wait()
    assert list(Report.load(path).runs) == ["O0"]
    resumed = forked.run(forked.ab, *resuming, env=env)
    other = forked.run(forked.ab, *command, "--json", whole, script, tmp_path / "nothing waits", env=env)
    assert resumed.returncode == other.returncode == 0, resumed.stderr + other.stderr
    assert f"{path}: 1 of 2 runs kept" in resumed.stderr and "O0 (run" not in resumed.stderr
    expected, found = ({level: run.loss for level, run in Report.load(each).runs.items()} for each in (whole, path))
    assert found == expected and [len(losses) for losses in found.values()] == [25, 25]


SECOND_RUN_WAITS = """
import os, sys, time
import torch
from apex import amp

with open(sys.argv[1], "a+") as begun:
    begun.write(os.environ["AMPCOMPAT_OPT_LEVEL"] + "\\n")
    begun.seek(0)
    runs = len(begun.readlines())
time.sleep(600 if runs == 2 and sys.argv[1].endswith("begun") else 0)
model = torch.nn.Linear(4, 1)
model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_scale=8.0)
for step in range(25):
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""


# -- variants ----------------------------------------------------------------------------------------------------------


def test_the_names_of_options_are_those_of_initialize():
    known = set(inspect.signature(amp.initialize).parameters)
    assert known - set(ab_variants.INITIALIZE) == {"models", "optimizers", "enabled", "opt_level", "verbosity"}
    assert set(ab_variants.INITIALIZE) <= known


def test_a_variant_has_options_of_run_of_initialize_and_of_the_environment():
    name, changes = ab_variants.parse_variant(
        "my variant: --opt-level O2 --backend patched keep_fp32=head,embed loss_scale=1024 master_weights=False "
        "cast_model_type=torch.bfloat16 'NAME=two words' --dtypes float32,float64 python=/usr/bin/python3 --device cpu"
    )
    options = changes["options"]
    assert (name, changes["opt_level"], changes["python"]) == ("my variant", "O2", "/usr/bin/python3")
    assert (options["backend"], options["dtypes"]) == ("patched", "float32,float64")
    expected = dict(keep_fp32=["head", "embed"], loss_scale=1024.0, master_weights=False, cast_model_type="bfloat16")
    assert options["initialize"] == expected
    assert (changes["environment"], changes["device"]) == ({"NAME": "two words"}, "cpu")


def test_layers_are_given_to_a_variant_as_forecast_prints_them():
    python = ab_variants.parse_variant('x: --opt-level O2 keep_fp32=["big.down", "big.up"] init_scale=8')[1]
    assert python["options"]["initialize"] == {"keep_fp32": ["big.down", "big.up"], "init_scale": 8.0}
    assert ab_variants.parse_variant("x: --keep-fp32 big.down,big.up")[1]["environment"] == {
        "AMPCOMPAT_KEEP_FP32": "big.down,big.up"
    }


@pytest.mark.parametrize(
    "levels, baseline, rows",
    [
        (None, None, ["unchanged", "a", "b"]),
        (None, "b", ["a", "b"]),
        (None, "O1", ["O1", "a", "b"]),
        (["O1"], None, ["O0", "O1", "a", "b"]),
    ],
)
def test_rows_and_the_baseline(levels, baseline, rows):
    found, chosen = ab_variants.choose_rows(levels, [("a", {}), ("b", {})], baseline)
    assert sorted(found) == sorted(rows) and chosen == (baseline or rows[0])
    with pytest.raises((ValueError, argparse.ArgumentTypeError)):
        ab_variants.choose_rows(levels, [], "c")


@pytest.mark.parametrize(
    "command, name",
    [(["a/gan.py", "1"], "gan.py"), (["-m", "pkg.train", "1"], "pkg.train"), (["old/new.py"], "unchanged")],
)
def test_where_scripts_are_compared_the_row_of_the_script_has_its_name(command, name):
    found, chosen = ab_variants.choose_rows(None, [("new.py", {"script": "new.py"})], None, command)
    assert list(found) == [name, "new.py"] and chosen == name


def test_variants_run_with_their_options_and_one_that_cannot_start_costs_its_own_row(tmp_path):
    script, saved = tmp_path / "training.py", tmp_path / "report.json"
    script.write_text(
        "import os, torch\n"
        "from apex import amp\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))\n"
        "model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_scale=8.0)\n"
        "assert (os.environ.get('VALUE') == '5') == (model[0].weight.dtype != model[1].weight.dtype)\n"
        "while True:\n"
        "    optimizer.zero_grad()\n"
        "    with amp.scale_loss(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:\n"
        "        scaled_loss.backward()\n"
        "    optimizer.step()\n"
    )
    options = ("--steps", "3", "--no-control", "--no-memory", "--no-diagnose", "--timing-steps", "0", "--json", saved)
    options += ("--variant", "kept: --opt-level O2 keep_fp32=0 loss_scale=1024 VALUE=5")
    other = tmp_path / "python"  # which is not forked
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    options += ("--variant", f"same: python={other}", "--variant", "gone: python=no-such-python")
    done = forked.run(forked.ab, *(options + (script,)), env=environment(**half_kernels.stand_in()))
    assert done.returncode == 0, done.stderr
    report = Report.load(str(saved))
    assert list(report.runs) == ["unchanged", "kept", "same", "gone"]
    assert [run.status for run in report.runs.values()] == ["stopped"] * 3 + ["failed"]
    assert [run.scale[0][2] for run in list(report.runs.values())[:3]] == [8.0, 1024.0, 8.0]
    assert report.runs["same"].loss == report.runs["unchanged"].loss
    assert "cannot be started" in report.runs["gone"].error
    assert json.loads(json.dumps(report.runs["kept"].identity)) == report.runs["kept"].identity


# -- times, and the end of a series ------------------------------------------------------------------------------------


def test_speeds_are_those_of_short_runs_in_turn_and_every_run_has_its_own_name(begun, script, tmp_path):
    names, path, rows = MadeRun.names, tmp_path / "report.json", ["O0", "O1", "O2", "O3", "O4"]
    assert ab_command.ab(["--levels", ",".join(rows), "--json", str(path), script]) == 0
    report = Report.load(str(path))
    assert list(report.runs) == rows and len(report.runs["O0"].repeats) == 1
    assert MadeRun.timed == rows + rows[::-1] + rows
    assert len(set(names)) == len(names) == 6 + 15  # so that no run finds files of another under {run}
    assert summary.seconds_per_step(report.runs["O1"]) == 0.5


def test_short_runs_take_turns_and_a_resumed_series_repeats_only_rounds_that_a_row_lacks(
    begun, script, tmp_path, monkeypatch
):
    """Times of another day, or of a round without the other levels, cannot be compared."""
    path, timed = tmp_path / "report.json", MadeRun.timed
    series_of = ["--resume", str(path), "--levels", "O0,O1"]
    assert ab_command.ab(series_of + [script]) == 0
    assert timed == ["O0", "O1", "O1", "O0", "O0", "O1"]
    report = Report.load(str(path))
    assert [len(run.timings) for run in report.runs.values()] == [3, 3]
    assert report.runs["O1"].speed.ratio == 1.0 and report.runs["O1"].speed.interval == (1.0, 1.0)
    del timed[:]
    assert ab_command.ab(series_of + [script]) == 0 and timed == []
    report.runs["O1"].timings.pop()  # the series was killed in the third round
    report.save(str(path))
    assert ab_command.ab(series_of + [script]) == 0 and timed == ["O0", "O1"]
    del timed[:]
    assert ab_command.ab(series_of + ["--timing-rounds", "4", script]) == 0 and timed == ["O1", "O0"]
    del timed[:]
    assert ab_command.ab(series_of[:-1] + ["O0,O1,O2", script]) == 0
    assert timed == ["O0", "O1", "O2", "O2", "O1", "O0", "O0", "O1", "O2"]


def test_ctrl_c_ends_the_series_and_what_was_measured_is_printed_and_written(script, tmp_path):
    with open(script, "w") as file:
        file.write(
            "import os, sys, time, torch\n"
            "from apex import amp\n"
            "model = torch.nn.Linear(4, 1)\n"
            "model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_scale=8.0)\n"
            "for step in range(4 if torch.initial_seed() == 0 else 10**6):\n"
            "    with amp.scale_loss(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:\n"
            "        scaled_loss.backward()\n"
            "    optimizer.step()\n"
            "    open(sys.argv[1] + str(torch.initial_seed()) + '.' + str(step), 'w').close()\n"
            "    time.sleep(0.01)\n"
        )
    saved, marker = tmp_path / "report.json", str(tmp_path / "made")
    command = "--levels", "O0", "--repeats", "3", "--no-memory", "--json", saved, script, marker
    done = forked.run(forked.ab, *command, interrupt_at=marker + "1000003.3")  # in the second run
    assert done.returncode == 130, done.stderr
    assert "interrupted after" in done.stderr and "only the baseline was run" in done.stdout
    goes_on = f"continue with: ampcompat ab --levels O0 --repeats 3 --no-memory --resume {saved} "
    assert f"wrote {saved}\n" + goes_on in done.stderr
    run = Report.load(str(saved)).runs["O0"]
    assert [(each.status, each.error) for each in [run] + run.repeats] == [("ok", None), ("interrupted", "interrupted")]
    assert len(run.repeats[0].loss) >= 3


def test_options_that_exclude_each_other_exist():
    given = vars(ab_options.new_parser().parse_args(["script.py"]))
    named = {each for name, others, _ in ab_options.EXCLUSIONS for each in [name] + others.split()}
    assert named - set(given) == set()


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("kind", ["series", "planned run"])
@pytest.mark.parametrize("number", [signal.SIGTERM, getattr(signal, "SIGKILL", None)])
def test_a_series_or_a_planned_run_that_is_killed_leaves_no_process_no_folder_and_no_changed_file(
    tmp_path, kind, number
):
    """The script steps once, and then overwrites a file again and again, whatever is raised."""
    temporary, script, stepping, plan = [tmp_path / name for name in ("temporary", "endless.py", "stepping", "plan")]
    temporary.mkdir()
    script.write_text(ENDLESS)
    older = tmp_path / "older"
    older.write_text("mine")
    os.utime(str(older), (time.time() - 86400,) * 2)
    given = ["--levels", "O0", "--no-control", "--no-memory", str(script), str(stepping), str(older)]
    env = environment(TMPDIR=str(temporary))
    if kind == "planned run":
        assert main(["ab", "--plan", str(plan)] + given) == 0
        process = forked.Forked(forked.planned_run, plan, "O0", env=env)
    else:
        process = forked.Forked(forked.ab, *given, env=env)
    _wait_until(stepping.exists)
    _wait_until(stepping.read_text)
    process.send_signal(number)
    assert process.wait(60) == (143 if number == signal.SIGTERM else -number)
    _wait_until(lambda: not forked.is_alive(int(stepping.read_text())))
    _wait_until(lambda: not [name for name in os.listdir(str(temporary)) if name.startswith("ampcompat-")])
    if hasattr(sys, "addaudithook"):
        assert older.read_text() == "mine"


ENDLESS = """
import os
import sys
import time
import torch
from apex import amp
model, optimizer = torch.nn.Linear(2, 1), None
model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), verbosity=0)
with amp.scale_loss(model(torch.ones(2, 2)).mean(), optimizer) as loss:
    loss.backward()
optimizer.step()
with open(sys.argv[2], "w") as file:
    file.write("of the run")
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
while True:
    try:
        time.sleep(0.05)
        with open(sys.argv[2], "w") as file:
            file.write("of the run")
    except (KeyboardInterrupt, OSError):
        pass
"""


def _wait_until(is_true, seconds=60):
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.skipif(not features.is_version_within(oldest="2.1"), reason="forecasts need torch 2.1")
def test_a_terminated_search_says_what_it_has_found_and_leaves_nothing(tmp_path):
    """A SIGTERM is raised as a kind of KeyboardInterrupt; ``test_ctrl_c_…`` send a SIGINT."""
    temporary, stdout = tmp_path / "temporary", tmp_path / "stdout"
    temporary.mkdir()
    stdout.touch()
    large = 2.0**23 if precision.IS_STAND_IN else 2.0**10  # the low dtype holds whole numbers only from there on
    (tmp_path / "cancels.py").write_text(CANCELS.replace("LARGE", str(large)))
    command = "--find-keep-fp32", "O2", "--no-memory", "--timing-steps", "0", tmp_path / "cancels.py", tmp_path
    env = environment(TMPDIR=str(temporary), **half_kernels.stand_in())
    process = forked.start(forked.ab, *command, env=env, stdout=str(stdout))
    _wait_until(lambda: (tmp_path / "second candidate").exists())
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 143
    told = "The search was interrupted after 1 run: O2 is accepted with keep_fp32=["
    assert told in stdout.read_text() and "(3 of 3 layers); fewer may be enough." in stdout.read_text()
    assert os.listdir(str(temporary)) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "second candidate").read_text()), 0)


#: The runs are: the baseline and its control, O2, the forecast, the search's first candidate, its second, which does
#: not end.
CANCELS = """
import os, sys, time
import torch
from apex import amp

class Cancels(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + LARGE - LARGE

with open(os.path.join(sys.argv[1], "runs"), "a+") as file:
    file.write("run\\n")
    file.seek(0)
    runs = len(file.readlines())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), Cancels(16, 16), torch.nn.Linear(16, 1))
model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), init_scale=256.0, verbosity=0)
step = 0
while step < 60 or runs == 6:
    if runs == 6 and step == 3:
        with open(os.path.join(sys.argv[1], "pid"), "w") as file:
            file.write(str(os.getpid()))
        os.replace(os.path.join(sys.argv[1], "pid"), os.path.join(sys.argv[1], "second candidate"))
    x = torch.randn(32, 8)
    loss = (model(x).float() - x.sum(1, keepdim=True) / 4).pow(2).mean() + 0.1
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    step += 1
    time.sleep(0.05 if runs == 6 else 0.0)
"""
