"""What an audit finds of planted faults, and whether it accuses their healthy twins: those of ``tests/audit``.

    python benchmarks/audit_planted.py

``lost_updates``: params that a finding names, those whose number of unmoved elements is the one counted by comparing
first and last weights, and these elements. The exit code is 1 if a fault was missed or a twin accused.
"""

import pathlib
import sys

import bench

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "audit"))

import test_planted


def main():
    """Print a row per kind of fault, and return the exit code."""
    bench.heading("fault", "planted", "found", "healthy twins", "accused", "params named, exact", "unmoved")
    rows = [_updates()] + [_runs(kind) for kind in sorted({run.kind for run in test_planted.RUNS.values()})]
    for row in rows:
        bench.row(*row)
    planted, found, twins, accused = (sum(row[place] for row in rows) for place in range(1, 5))
    bench.row("all", planted, found, twins, accused, "", "")
    print("\n" + bench.machine())
    return int(found < planted or accused > 0)


def _updates():
    cases, found, accused, layers, exact, elements = test_planted.UPDATES.values(), 0, 0, 0, 0, 0
    for case in cases:
        wrong, model, first = test_planted.trained(case, case.dtype)
        params = dict(model.named_parameters())
        lost = [layer for each in wrong if each["kind"] == "lost_updates" for layer in each["layers"]]
        counts = [(layer["unmoved"], int((params[layer["name"]] == first[layer["name"]]).sum())) for layer in lost]
        found, layers = found + bool(lost), layers + len(lost)
        exact += sum(told == counted for told, counted in counts)
        elements += sum(counted for _, counted in counts)
        accused += bool(test_planted.trained(case, test_planted.FULL)[0])
    return "lost_updates", len(cases), found, len(cases), accused, f"{layers}, {exact}", f"{elements:,}"


def _runs(kind):
    runs = [run for run in test_planted.RUNS.values() if run.kind == kind]
    found = sum(kind in [each["kind"] for each in test_planted.audited(run.planted, run.argv)] for run in runs)
    accused = sum(bool(test_planted.audited(run.healthy, run.argv)) for run in runs)
    return kind, len(runs), found, len(runs), accused, "", ""


if __name__ == "__main__":
    sys.exit(main())
