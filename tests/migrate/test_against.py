"""``ab --against``: a migrated script, without ampcompat's ``apex``, is compared with the script before."""

import functools
import json
import os
import shutil
import sys
from dataclasses import asdict

import migrated_scripts as scripts
import pytest
import torch
from helpers import forked
from helpers.half_kernels import trains_in
from helpers.processes import ROOT

import ampcompat
from ampcompat.abtest import Report, Run
from ampcompat.abtest.judging.verdict import ACCEPTED, judge
from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.abtest.recording.event_log import EventReader, apply_event
from ampcompat.abtest.running import seeding, subprocess_child
from ampcompat.apex import install

pytest.importorskip("libcst", reason="the extra `migrate` has LibCST")
if not hasattr(getattr(torch, "amp", None), "GradScaler") or not trains_in(torch.float16):
    pytest.skip("migrated scripts need torch 2.3 or later", allow_module_level=True)

from ampcompat.static_analysis.migrate import migrate  # noqa: E402

migrated = functools.lru_cache(maxsize=None)(migrate)  # it takes as long as the trainings
BY_LINE = {"losses_by_line": True, "diagnose": False, "memory": False, "verbosity": 0}


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Return a function that does a ``PlannedRun`` as a child process does it, but in this process."""
    monkeypatch.setattr(subprocess_child.signal, "signal", lambda *_: None)  # a child ignores Ctrl-C at its end
    monkeypatch.setattr(torch.jit, "script", torch.jit.script)  # the session of a child lives longer than its recorder

    def do(command, level="unchanged", **changes):
        planned = PlannedRun(level, command, options=BY_LINE, **changes)
        log = str(tmp_path / (planned.label + ".events"))
        install.install() if planned.has_alias else None
        try:
            with seeding.restored():
                subprocess_child.main([json.dumps(dict(asdict(planned), event_log=log, parent=None, checkpoints={}))])
        finally:
            ampcompat.reset()
            install.uninstall()
            sys.modules.pop("apex", None)  # of a script without the alias: the folder tests/apex
        run = Run()
        for event in EventReader(log).new_events():
            apply_event(run, event)
        return run

    return do


def compared(record, path, *arguments):
    """Migrate a script, record both, and return the report; "new" is the migrated one."""
    new = path.replace(".py", ".new.py")
    with open(path, encoding="utf-8") as file, open(new, "w", encoding="utf-8") as out:
        result = migrated(file.read())
        assert result.left == []
        out.write(result.source)
    report = Report(baseline="unchanged")
    for repeat in (0, 1):
        report.add("unchanged", repeat, record([path] + list(arguments), repeat=repeat))
    report.add("new", 0, record([new] + list(arguments), "new", has_alias=False))
    assert [run.error for run in report.runs.values()] == [None, None]
    return report


EXAMPLES, USERS = os.path.join(ROOT, "examples"), os.path.join(os.path.dirname(__file__), "user_scripts")


@pytest.mark.parametrize(
    "folder, name, arguments, losses",
    [
        (EXAMPLES, "digits_cnn", "--steps 25", 1),
        (EXAMPLES, "char_transformer", "--steps 25 --width 16 --context 8", 1),
        (USERS, "classifier", "--fp16 --epochs 3", 1),
        (USERS, "classifier", "--epochs 3", 1),
        (USERS, "language_model", "--steps 24", 1),
        (USERS, "language_model", "--steps 24 --opt_level O4", 1),
        (USERS, "gan", "--niter 40", 3),
    ],
)
def test_a_script_is_accepted(record, tmp_path, folder, name, arguments, losses):
    if name == "digits_cnn":
        pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    path = shutil.copy(os.path.join(folder, name + ".py"), str(tmp_path))
    report = compared(record, path, *arguments.split())
    assert judge(report)["new"].kind == ACCEPTED, judge(report)["new"]
    old, new = report.runs["unchanged"], report.runs["new"]
    assert [row[:2] for row in new.loss] == [row[:2] for row in old.loss]  # the same steps and the same losses
    # A CPU with float16 units (AVX512-FP16) adds up in half, where ampcompat emulates sums in float32.
    assert [row[2] for row in new.loss] == pytest.approx([row[2] for row in old.loss], rel=0.05)
    assert {loss_id for _, loss_id, _ in new.loss} == set(range(losses))


def test_a_script_for_cuda_is_accepted_from_the_command_line(tmp_path):
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    on_cuda = scripts.SIMPLE.replace("nn.Linear(32, 4))", "nn.Linear(32, 4)).cuda()").replace("12)\n", "12).cuda()\n")
    assert on_cuda.count("cuda()") == 2
    old.write_text(on_cuda + "\n\nrun(60)\n")
    new.write_text(migrate(old.read_text()).source)
    options = ("--device", "cpu", "--against", new, "--json", tmp_path / "report.json", "--no-memory", "--no-diagnose")
    done = forked.run(forked.ab, *options, "--timing-steps", "0", old)
    assert done.returncode == 0, done.stderr
    report = Report.load(str(tmp_path / "report.json"))
    assert list(report.runs) == ["old.py", "new.py"]
    assert judge(report)["new.py"].kind == ACCEPTED, done.stdout


def test_a_script_that_needs_apex_fails_where_it_is_run_without(record, tmp_path):
    path = tmp_path / "script.py"
    path.write_text("from apex import amp\n")
    assert "cannot import name 'amp'" in record([str(path)], has_alias=False).error  # tests/apex is a folder


def test_steps_are_those_of_the_losses_lines_where_an_optimizer_is_never_used(record, tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(
        "import torch\n"
        "models = [torch.nn.Linear(2, 1) for _ in range(3)]\n"
        "critic, maker, unused = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]\n"
        "for step in range(6):\n"
        "    loss = models[0](torch.full((2, 2), step + 1.0)).pow(2).mean() * 0 + step\n"
        "    (loss / 2).backward()\n"
        "    critic.step()\n"
        "    if step % 3 == 2:\n"
        "        (models[1](torch.ones(2, 2)).mean() * 0 + 10 * step).backward()\n"
        "        maker.step()\n"
    )
    run = record([str(path)])
    expected = [
        (0, 0, 0.0),
        (1, 0, 0.5),
        (2, 0, 1.0),
        (2, 1, 20.0),
        (3, 0, 1.5),
        (4, 0, 2.0),
        (5, 0, 2.5),
        (5, 1, 50.0),
    ]
    assert list(run.loss) == expected


def test_a_step_that_gradscaler_skips_is_recorded_as_skipped(record, tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler('cpu', init_scale=8.0)\n"
        "for step in range(4):\n"
        "    loss = model(torch.ones(2, 2)).mean() * (float('inf') if step == 1 else 1.0)\n"
        "    optimizer.zero_grad()\n"
        "    scaler.scale(loss).backward()\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
    )
    backward, make = torch.autograd.backward, torch.optim.Optimizer.__init__
    run = record([str(path)])
    assert run.skipped == [1] and [value for _, _, value in run.scale] == [8.0, 8.0, 4.0, 4.0]
    assert (torch.autograd.backward, torch.optim.Optimizer.__init__) == (backward, make)
