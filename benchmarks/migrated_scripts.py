"""Do scripts that ``migrate`` rewrote train as before? Losses of the old and the new script, update by update.

    python benchmarks/migrated_scripts.py

Each script is rewritten, and run by ``ampcompat ab --against`` on the CPU: the old one with two seeds, the new one with
the first of them, and without ampcompat's ``apex``. A row has the largest relative difference between the losses of the
old and the new script at the same update, the largest one between the two seeds, and the verdict of ``ab``. The exit
code is 1 if a script is not accepted.
"""

import os
import subprocess
import sys
import tempfile

import bench

from ampcompat.abtest import Report
from ampcompat.abtest.judging.verdict import ACCEPTED, judge

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WRITTEN_BY_USERS = "tests/migrate/user_scripts/"

#: The scripts and their arguments.
SCRIPTS = [
    ("examples/imagenet.py", "--images 320 --size 8 --width 4 --epochs 1 -b 16 -j 0 --lr 0.1"),
    ("examples/char_transformer.py", "--steps 60 --width 16 --context 8"),
    (WRITTEN_BY_USERS + "classifier.py", "--fp16 --epochs 4"),
    (WRITTEN_BY_USERS + "language_model.py", "--steps 40"),
    (WRITTEN_BY_USERS + "gan.py", "--niter 60"),
]


def compared(script, arguments, folder):
    """Rewrite a script, run both, and return the ``Report``."""
    new, path = os.path.join(folder, "new.py"), os.path.join(folder, "report.json")
    _run("migrate", script, "-o", new, "--force")
    options = ["--device", "cpu", "--no-memory", "--no-diagnose", "--json", path]
    _run("ab", *options, "--against", new, script, *arguments.split())
    return Report.load(path)


def _run(*arguments):
    command = [sys.executable, "-m", "ampcompat"] + list(arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode:
        raise SystemExit("{} failed:\n{}".format(" ".join(command), done.stderr))


def largest_difference(one, other):
    """Return the largest relative difference between the losses of two ``Run`` objects at the same update."""
    differences = []
    for loss_id in one.loss_ids():
        losses, others = one.losses(loss_id), other.losses(loss_id)
        differences += [abs(losses[step] - others[step]) / abs(losses[step]) for step in losses if step in others]
    return max(differences)


def main():
    """Print the table."""
    print("script                  updates  old and new differ by  seeds differ by  verdict")
    accepted = 0
    for script, arguments in SCRIPTS:
        with tempfile.TemporaryDirectory() as folder:
            report = compared(os.path.join(ROOT, script), arguments, folder)
        (name,) = set(report.runs) - {report.baseline}
        old, seed = (report.run_of(report.baseline, repeat) for repeat in (0, 1))
        new, verdict = report.run_of(name, 0), judge(report)[name].kind
        row = "{:23} {:7} {:20.3g} % {:14.3g} %  {}"
        differences = [100 * largest_difference(old, each) for each in (new, seed)]
        print(row.format(os.path.basename(script), len(old.losses(0)), *(differences + [verdict])), flush=True)
        accepted += verdict == ACCEPTED
    print(bench.machine())
    return 0 if accepted == len(SCRIPTS) else 1


if __name__ == "__main__":
    sys.exit(main())
