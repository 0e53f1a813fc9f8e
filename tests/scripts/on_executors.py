"""Compare levels on a real engine, with workers that are killed: ``python on_executors.py {dask,submitit} FOLDER``.

Each run of the function must have the losses that it has without an engine; exits with an error if not.
"""

import os
import signal
import sys

import torch
from helpers.forked import start_method

from ampcompat import amp
from ampcompat.abtest import compare

STEPS = 10


class Training:
    """A training that kills its process: at O1 the first time, at O2 each time."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, level):
        model = torch.nn.Linear(4, 1)
        model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_scale=8.0)
        for step in range(STEPS):
            if step == STEPS // 2:
                self.die(level)
            optimizer.zero_grad()
            with amp.scale_loss(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()

    def die(self, level):
        """Kill this process, if it is the turn of the level."""
        marker = os.path.join(self.folder or "", "died")
        if self.folder and (level == "O2" or (level == "O1" and not os.path.exists(marker))):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


def on_dask(folder):
    """Train in the two workers of a cluster, some of which are killed in the middle of a run."""
    import dask
    from distributed import Client, LocalCluster

    # Of its own tries Dask makes no more than one, so that ours is seen.
    options = {"distributed.scheduler.allowed-failures": 0, "distributed.admin.tick.limit": "60s"}
    options["distributed.worker.multiprocessing-method"] = start_method()  # the server that this process came from
    with dask.config.set(options), LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            given = {"levels": ("O0", "O1", "O2"), "memory": False, "dtypes": "float32,float64"}
            report = compare(Training(folder), executor=client.get_executor(), **given)
    expected = compare(Training(None), **given)
    statuses = {level: run.status for level, run in report.runs.items()}
    assert statuses == {"O0": "ok", "O1": "ok", "O2": "failed"}, {n: run.error for n, run in report.runs.items()}
    assert "its worker was lost twice" in report.runs["O2"].error
    for level, repeat in (("O0", 0), ("O0", 1), ("O1", 0)):
        assert report.run_of(level, repeat).loss == expected.run_of(level, repeat).loss, (level, repeat)
    assert report.environment["torch"] == torch.__version__


def on_submitit(folder):
    """Run a script in a job of submitit's local executor."""
    import submitit

    script = os.path.join(folder, "training.py")
    with open(script, "w") as file:
        file.write("import on_executors\non_executors.Training(None)('O0')\n")
    executor = submitit.LocalExecutor(os.path.join(folder, "logs"))
    executor.update_parameters(timeout_min=5)
    given = {"levels": ["O0"], "control": False, "memory": False}
    report = compare([script], executor=executor, **given)
    run = report.runs["O0"]
    assert (run.status, len(run.loss)) == ("ok", STEPS), run.error
    assert run.identity["torch"] == torch.__version__ and report.environment["script"] == script
    assert os.listdir(os.path.join(folder, "logs"))


if __name__ == "__main__":
    {"dask": on_dask, "submitit": on_submitit}[sys.argv[1]](sys.argv[2])
