"""Run the tests for a second device, torch_xla's CPU runtime: two processes at a time, and a line of counts at the end.

    python .ci/second_device.py [ARGUMENTS OF PYTEST]

Every file of tests/second_device has a process of its own: they count what torch_xla has compiled, and one makes a
graph fail. The files of tests/specification that name no device are divided among a few processes.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys
import time
from concurrent import futures

ROOT = pathlib.Path(__file__).resolve().parent.parent
GROUPS = 4
NO_TESTS = 5  # an exit code of pytest

#: Files of tests/specification that are not run, and why.
LEFT_OUT = {
    "checkpointing": "torch.utils.checkpoint reads torch.xla, which does not exist",
    "fake_cuda_models": "it names a device",
    "threads": "batch norm in eval mode has no gradient in torch_xla, and a test does not end",
    "weight_states": "its random sequences write through numpy, and take minutes",
}


def commands():
    """Return the arguments of pytest for each process, about the longest first."""
    files = sorted(ROOT.glob("tests/second_device/test_*.py"), key=lambda path: -path.stat().st_size)
    own = [["-p", "helpers.second_device", str(path)] for path in files]
    rest = sorted(ROOT.glob("tests/specification/test_*.py"), key=lambda path: -path.stat().st_size)
    rest = [str(path) for path in rest if path.stem[len("test_") :] not in LEFT_OUT]
    return [["-p", "helpers.on_second_device", *rest[index::GROUPS]] for index in range(GROUPS)] + own


def run(arguments):
    """Run pytest in a process; print what it prints; return its exit code and its counts."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    # Compiling takes nearly all of the time, and a third of it where LLVM does not optimize.
    env = dict(os.environ, PYTHONPATH=path, PJRT_DEVICE="CPU", XLA_FLAGS="--xla_backend_optimization_level=0")
    env.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(
        command, cwd=str(ROOT), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    print(done.stdout, flush=True)
    counts = collections.Counter()
    for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", (done.stdout.splitlines() or [""])[-1]):
        counts[word] += int(count)
    if done.returncode == NO_TESTS and len(sys.argv) > 1:  # as of -k NAME in the other files
        return 0, counts
    if done.returncode not in (0, 1):
        print(f"FAILED {' '.join(arguments)}: exit code {done.returncode}", flush=True)
        counts["processes broken"] += 1
    return done.returncode, counts


def main(*arguments):
    """Run all processes; return 1 if one has failed."""
    started, total = time.monotonic(), collections.Counter()
    with futures.ThreadPoolExecutor(2) as pool:
        done = list(pool.map(run, [[*command, *arguments] for command in commands()]))
    for _, counts in done:
        total += counts
    counted = ", ".join(f"{count} {word}" for word, count in total.items())
    print(f"{counted} in {time.monotonic() - started:.0f}s")
    return int(any(code for code, _ in done))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
