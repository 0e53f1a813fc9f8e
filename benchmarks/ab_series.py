"""What a series of many runs costs its coordinator: CPU time per run, and memory, through Dask.

    python benchmarks/ab_series.py [--runs 600] [--scripts 6]

Rows: ``--runs`` trainings of ten steps as a function, and ``--scripts`` as a script with a process each, on a
LocalCluster with two workers. "ours" is the CPU time of the thread that calls ``compare``, per run, without the
verdict, which has its own column; "with Dask" is that of the whole process, with Dask's client and scheduler, which
take time while they wait too.
"""

import argparse
import os
import resource
import sys
import tempfile
import time

from distributed import Client, LocalCluster

from ampcompat.abtest import compare
from ampcompat.abtest.judging import advice

STEPS = 10
TRAINING = "import sys\nsys.path.insert(0, {!r})\nimport ab_series\nab_series.train('O0')\n"


def train(level):
    """Train ten steps."""
    import torch

    from ampcompat import amp

    model = torch.nn.Linear(4, 1)
    model, optimizer = amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.01), opt_level=level)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.randn(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()


def measured(client, training, runs):
    """Compare two levels with half of the runs each; return a row of the table."""
    spent = []
    judge = advice.advise

    def advise(report):
        start = time.thread_time()
        judge(report)
        spent.append(time.thread_time() - start)

    advice.advise = advise
    before, wall, start, all_start = peak_mebibytes(), time.monotonic(), time.thread_time(), time.process_time()
    try:
        given = {"levels": ("O0", "O2"), "repeats": runs // 2, "memory": False, "diagnose": False, "verbosity": 0}
        report = compare(training, executor=client.get_executor(), **given)
    finally:
        advice.advise = judge
    ours, all_threads = time.thread_time() - start - spent[0], time.process_time() - all_start - spent[0]
    assert all(len([run] + run.repeats) == runs // 2 for run in report.runs.values())
    row = (runs, 1e3 * ours / runs, 1e3 * all_threads / runs, spent[0], peak_mebibytes() - before)
    return "{:5d}  {:14.2f}  {:19.2f}  {:12.2f}  {:8.1f}  {:8.1f}".format(*row, time.monotonic() - wall)


def peak_mebibytes():
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=600)
    parser.add_argument("--scripts", type=int, default=6)
    stated = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "training.py")
        with open(script, "w") as file:
            file.write(TRAINING.format(os.path.dirname(os.path.abspath(__file__))))
        with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            compare(train, levels=["O0"], control=False, executor=client.get_executor())  # workers import torch
            print("of            runs  ms a run, ours  ms a run, with Dask  s of verdict  MiB more  s in all")
            print(f"a function  {measured(client, train, 60)}", flush=True)
            print(f"a function  {measured(client, train, stated.runs)}", flush=True)
            print(f"a script    {measured(client, [script], stated.scripts)}", flush=True)


if __name__ == "__main__":
    main()
