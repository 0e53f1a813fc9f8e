"""Scripts that resume: a run does not go on from the checkpoint of another run of its series."""

import os
import time

import torch
from helpers import loops

from ampcompat import amp
from ampcompat.abtest import Report, compare

STEPS = 4


def resuming(path, before=lambda: None):
    """Return a training that goes on from the checkpoint at ``path`` and saves it after every step."""

    def train(level):
        before()
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), opt_level=level)
        start = 0
        if os.path.exists(path):
            checkpoint = torch.load(path)
            start = checkpoint["step"]
            model.load_state_dict(checkpoint["model"])
        for step in range(start, STEPS):
            optimizer.zero_grad()
            loops.step(model(torch.ones(2, 4)).float().pow(2).mean(), optimizer)
            torch.save({"model": model.state_dict(), "step": step + 1}, path)

    return train


def compared(train):
    return compare(train, levels=["O0", "O2"], control=False)


def test_a_run_that_would_go_on_from_the_checkpoint_of_another_fails_with_the_reason(tmp_path):
    report = compared(resuming(str(tmp_path / "last.pt")))
    assert report.runs["O0"].status == "ok"
    assert Report.from_json(report.to_json()).checkpoints() == {str(tmp_path / "last.pt"): "O0"}
    error = report.runs["O2"].error
    assert "last.pt, the checkpoint of the run O0" in error and "'runs/{run}/last.pt'" in error


def test_every_run_goes_on_from_a_checkpoint_from_before_the_series(tmp_path):
    path = str(tmp_path / "last.pt")
    torch.save({"model": torch.nn.Linear(4, 1).state_dict(), "step": 1}, path)
    os.utime(path, (time.time() - 60,) * 2)
    report = compared(resuming(path))
    assert [len(run.step_seconds) for run in report.runs.values()] == [STEPS - 1] * 2
    assert [run.checkpoints for run in report.runs.values()] == [[], []] and torch.load(path)["step"] == 1


def test_what_a_run_saves_before_its_first_step_is_for_all_runs(tmp_path):
    path = tmp_path / "dataset.pt"

    def prepare():
        if not path.exists():
            torch.save(torch.ones(2), str(path))
        torch.load(str(path))

    seen = iter(range(2))
    report = compared(lambda level: resuming(str(tmp_path / f"last-{next(seen)}.pt"), prepare)(level))
    assert [run.error for run in report.runs.values()] == [None, None]


def test_the_error_of_a_folder_that_exists_names_the_way_to_give_each_run_its_own(tmp_path):
    report = compared(lambda level: (os.makedirs(str(tmp_path / "output")), resuming(str(tmp_path / "last.pt"))(level)))
    assert report.runs["O0"].error is None
    assert "output'; give each run its own: OPTION 'runs/{run}/output'" in report.runs["O2"].error


def test_what_is_written_again_since_the_run_began_is_its_own(tmp_path):
    path = str(tmp_path / "last.pt")

    def begin():  # as another process of a distributed training may do
        torch.save({"model": torch.nn.Linear(4, 1).state_dict(), "step": 0}, path)
        os.utime(path, (time.time() + 1,) * 2)

    assert [run.error for run in compared(resuming(path, begin)).runs.values()] == [None, None]


def test_a_training_that_has_ended_before_is_named_by_its_checkpoint(tmp_path):
    path = str(tmp_path / "last.pt")
    torch.save({"model": torch.nn.Linear(4, 1).state_dict(), "step": STEPS}, path)
    error = compared(resuming(path)).runs["O0"].error
    assert "before the first optimizer.step()" in error and "last.pt: had that training already ended?" in error
