"""``ampcompat ab``: options, output and exit codes."""

import os
import sys

import pytest
import torch
from helpers import forked, half_kernels, precision
from helpers.processes import ROOT, environment, python

from ampcompat.abtest import Report
from ampcompat.abtest.running import subprocess_child
from ampcompat.cli import main
from ampcompat.support.torch_compat import step_hooks

AB = ("-m", "ampcompat", "ab")
OVERFLOW = os.path.join(ROOT, "tests", "scripts", "overflow.py")

HAS_STEP_HOOKS = hasattr(sys.modules[torch.optim.Optimizer.__module__], "register_optimizer_step_post_hook")

TRAINING = """
import os, random, sys, time
import torch
from apex import amp

torch.manual_seed(5)
print("arguments", sys.argv[1:])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=8.0)
level = amp._amp_state.opt_properties.opt_level
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    if step == 2 and level == "O1":
        raise ValueError("no such thing")
    if step == 2 and level == "O3":
        os.kill(os.getpid(), 9)
    time.sleep(float(sys.argv[2]))
"""


def run_ab(*arguments):
    """Run ``ab`` without its short runs; return the finished process."""
    return forked.run(forked.ab, "--timing-steps", 0, *arguments, env=environment(**half_kernels.stand_in()))


@pytest.mark.parametrize("name", ["ab", "run"])
def test_the_help_of_a_command_that_runs_a_script_has_no_long_lines(capsys, name):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"usage: ampcompat {name} [OPTION ...] SCRIPT [ARGS ...]",
        f"       ampcompat {name} [OPTION ...] -m MODULE [ARGS ...]",
    ]
    assert max(map(len, lines)) <= 100


# -- the whole command -------------------------------------------------------------------------------------------------


def test_each_level_is_a_row_and_failed_ones_have_their_error(script, tmp_path):
    saved = tmp_path / "report.json"
    command = (
        "--levels",
        "O0,O1,O3",
        "--steps",
        "6",
        "--timing-rounds",
        "1",
        "--seed",
        "3",
        "--json",
        saved,
        script(TRAINING),
        "9",
        "0",
        "runs/{run}",
    )
    done = forked.run(forked.ab, *command, env=environment(**half_kernels.stand_in()))
    assert done.returncode == 0, done.stderr
    assert "arguments ['9', '0', 'runs/O1']" in done.stdout  # what a failed level printed, and no other
    assert done.stdout.count("arguments") == 2
    assert "ValueError: no such thing" in done.stdout
    table = done.stdout[done.stdout.index("level  verdict") :]
    rows = {line.split()[0]: line.split() for line in table.splitlines()[1:4]}
    assert [rows["O0"][-1], rows["O1"][-1], rows["O3"][-1]] == ["0/6", "0/3", "0/3"]
    assert rows["O1"][1] == rows["O3"][1] == "failed"
    assert "O3: failed: its process was killed by SIGKILL" in done.stdout
    assert "they write: OPTION" not in table  # no file of the script was overwritten
    assert max(map(len, table.splitlines())) <= 100
    assert "O0 (run 1 of 4): 6 steps in 0:" in done.stderr and "O1 (run 2 of 4): failed after 3 steps" in done.stderr
    report = Report.from_json(saved.read_text())
    assert [run.status for run in report.runs.values()] == ["stopped", "failed", "failed"]
    first_losses = [report.runs[level].loss[0][2] for level in ("O0", "O3")]  # of the same weights and batch
    assert first_losses[0] == pytest.approx(first_losses[1], rel=1e-2)
    assert report.runs["O1"].traceback.count("File") == 1
    assert report.environment["seed"] == 3 and report.environment["device"].startswith("cpu")
    assert report.environment["script"].endswith("script.py 9 0 'runs/{run}'")
    assert sorted(os.listdir(str(tmp_path))) == ["report.json", "script.py"]


def test_a_distributed_script_for_cuda_runs_under_its_launcher_on_another_device(script):
    pytest.importorskip("torch.distributed.run", reason="this torch has no torchrun")
    path = script(
        """
        import torch
        from apex import amp
        from apex.parallel import DistributedDataParallel

        torch.distributed.init_process_group("nccl")
        if torch.distributed.get_rank() == 0:
            print("the script's own line")
        model = torch.nn.Linear(4, 1).cuda()
        model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01))
        model = DistributedDataParallel(model)
        while True:
            optimizer.zero_grad()
            with amp.scale_loss(model(torch.randn(3, 4, device="cuda")).pow(2).mean(), optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()
        """
    )
    launcher = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node 2"
    options = ("--device", "cpu", "--levels", "O0", "--steps", "3", "--no-control", "--verbose", "--launcher", launcher)
    done = python(*AB, *options, path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the script's own line\n")
    assert "O0: 3 steps" in done.stderr and "cpu (threads: " in done.stdout


# -- without short runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, says",
    [
        ("print('hello')", "amp.initialize was never called"),
        (
            "import torch; from apex import amp; model = torch.nn.Linear(1, 1)\n"
            "amp.initialize(model, torch.optim.SGD(model.parameters(), lr=1), enabled=False)",
            "enabled=False",
        ),
        ("import sys; sys.exit(3)", "it left with exit code 3"),
    ],
)
def test_if_every_level_fails_the_exit_code_is_one(script, source, says):
    done = run_ab("--levels", "O2,O1", "--baseline", "O2", "--no-control", script(source))
    assert done.returncode == 1, done.stderr
    printed = done.stdout
    never = "never called" in says or "enabled" in says
    assert "O2: failed: " in printed and "O1" not in printed and says in printed and printed.count("failed: ") == 1
    assert ("The other levels were not run" in printed) == never
    assert "No advice" in printed
    (row,) = [line for line in printed.splitlines() if line.startswith("O2  ")]
    assert set(row.split()[2:]) == {"-"}


@pytest.mark.skipif(not step_hooks.exist(), reason="this torch has no hooks of all optimizers: scripts without amp")
def test_a_script_without_apex_that_does_not_train_is_told_so(script):
    done = run_ab("--levels", "O1", script("print('hello')"))
    assert done.returncode == 1 and "unchanged: failed: no backward pass ran in this process" in done.stdout
    assert "amp.initialize" not in done.stdout and "O1" not in done.stdout


DISABLED_AMP = """
import argparse, torch
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--fp16", action="store_true")
args = parser.parse_args()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if args.fp16 or True:
    model, optimizer = amp.initialize(model, optimizer, enabled=False, verbosity=0)
for step in range(50):
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    print("made step", step)
"""


@pytest.mark.skipif(not HAS_STEP_HOOKS, reason="torch before 2.0 has no hooks of all optimizers")
def test_steps_end_a_training_with_disabled_amp_and_the_condition_is_told(script):
    done = run_ab("--levels", "O1", "--steps", "4", "--no-control", script(DISABLED_AMP))
    assert done.returncode == 1, done.stderr
    printed = " ".join(done.stdout.split())
    assert "made step 2" in printed and "made step 4" not in printed
    assert "enabled=False" in printed
    told = "calls amp.initialize only under a condition, in line 11: `if args.fp16 or True`"
    assert "script.py " + told in printed and "The other levels were not run" in printed


def test_a_file_that_several_runs_saved_is_named_with_its_last_run(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saving = TRAINING.replace("if step == 2 and", "if False and") + "torch.save(model.state_dict(), sys.argv[3])\n"
    path = script(saving)
    apart = "'runs/{run}/last.pt' in place of last.pt."
    for levels, text in (
        ("O0,O2", "Several runs saved the same file: last.pt (now of O2). To keep them apart: "),
        ("O0", "Runs changed last.pt, which existed before: put back. To keep what they write: "),
    ):
        done = run_ab("--levels", levels, "--no-control", path, "3", "0", "last.pt")
        assert done.returncode == 0, done.stderr
        printed = " ".join(done.stdout.split())
        assert text + apart in printed and printed.count(apart) == 1


def test_a_pipeline_fails_on_a_result_and_tables_are_written(script, tmp_path):
    markdown, latex = tmp_path / "table.md", tmp_path / "table.tex"
    options = ("--levels", "O1", "--tolerance", "0.1", "--fail-on", "failed", "--markdown", markdown, "--latex", latex)
    done = run_ab(*(options + ("--no-memory", "--no-diagnose", script(TRAINING), 5, 0)))
    assert done.returncode == 3 and "ampcompat ab: --fail-on: failed: O1\n" in done.stderr, done.stderr
    assert "O1: equivalence within 10 % is not shown with 1 seed" in done.stdout
    assert "| O1 | failed |" in markdown.read_text() and latex.read_text().count(" & failed & ") == 1
    assert f"wrote {markdown}\nwrote {latex}\n" in done.stderr


needs_half = pytest.mark.skipif(precision.IS_STAND_IN, reason="float32, which stands in for half, does not overflow")


@needs_half
def test_the_module_that_overflows_and_the_next_command_are_named():
    done = run_ab("--levels", "O0,O2", OVERFLOW)
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    assert "step 20, O2: " in printed and "came first" in printed
    command = "ampcompat forecast " + OVERFLOW  # which is not broken at spaces
    assert command in printed and "its loss is nan from step 20 on" in printed
    assert "Take O0" in printed


def test_a_nan_loss_of_the_baseline_rejects_no_other_level():
    done = run_ab("--details", "--levels", "O0,O2", OVERFLOW, "nan")
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())
    # At O2 step 12 was skipped: its forward pass was repeated, since it had no hooks.
    assert "steps 12 to 16, O0 O2: The loss was nan before scaling. In the forward pass nan was there" in printed
    assert "No advice: the baseline O0 is not a usable reference: its loss is nan from step 12 on" in printed


def test_under_a_launcher_the_error_names_the_option(monkeypatch, error_line, script):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "--launcher" in error_line("ab", script(""))


# -- the process of a script -------------------------------------------------------------------------------------------


def test_a_script_is_main_with_its_own_arguments_and_path(script, capsys):
    path = script(
        """
        import sys
        print([__name__, sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals(), __file__])
        """
    )
    before = list(sys.path), list(sys.argv)
    subprocess_child.run_script([path, "--levels", "-m"])
    expected = ["__main__", [path, "--levels", "-m"], os.path.dirname(os.path.realpath(path)), True, path]
    assert capsys.readouterr().out == f"{expected}\n"
    assert (sys.path, sys.argv) == before


def test_a_module_runs_from_the_current_folder(script, capsys, monkeypatch, tmp_path):
    script("import sys; print(__name__, sys.argv[1:], __spec__.name)", "module_of_ab.py")
    monkeypatch.chdir(tmp_path)
    subprocess_child.run_script(["-m", "module_of_ab", "x"])
    assert capsys.readouterr().out == "__main__ ['x'] module_of_ab\n"


OVERFLOWS = """
import torch
from apex import amp

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
torch.nn.init.constant_(model[0].bias, 6e4)
torch.nn.init.constant_(model[1].weight, 2.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for _ in range(4):
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""


@needs_half
def test_of_four_steps_the_report_names_the_layer_that_overflows_and_the_command_of_the_user(script):
    done = run_ab("--levels", "O0,O2,O3", "--no-control", "--steps", "4", script(OVERFLOWS), "7")
    printed = " ".join(done.stdout.split())
    assert "O2: every one of its 4 steps was skipped" in printed and "O3: its loss is nan from step 0 on" in printed
    assert "step 0, O2 O3: The loss was inf before scaling. In the forward pass inf came first from module 1" in printed
    assert "script.py 7` finds which" in printed
