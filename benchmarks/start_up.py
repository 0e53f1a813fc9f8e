"""What importing ampcompat adds to importing torch, and what ``run`` adds to starting a script.

Prints medians of interleaved rounds, each in a fresh interpreter:

    import      `import torch` against `import torch; from ampcompat import amp`, measured inside the interpreter
    run         `python script.py` against `python -m ampcompat run script.py`, whole processes, for a script that
                imports nothing (the worst case for the ratio)

    python benchmarks/start_up.py [--rounds 15]
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import bench

ROOT = str(pathlib.Path(__file__).resolve().parent.parent)
ENVIRONMENT = dict(os.environ, PYTHONPATH=os.pathsep.join([ROOT] + os.environ.get("PYTHONPATH", "").split(os.pathsep)))

TIMED = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
{statement}
print(middle - start, time.perf_counter() - middle)
"""


def imported(statement):
    """Return (seconds of `import torch`, seconds of the statement after it) in a fresh interpreter."""
    command = [sys.executable, "-c", TIMED.format(statement=statement)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=ENVIRONMENT).stdout
    return [float(word) for word in printed.split()]


def started(*arguments):
    """Return a function that returns the seconds that a process takes from start to end."""
    return lambda: bench.seconds(lambda: subprocess.run([sys.executable, *arguments], check=True, env=ENVIRONMENT))


def main():
    stated = bench.options(__doc__, rounds=15)
    print(f"python {sys.version.split()[0]}, {stated.rounds} rounds")
    for statement in ("from ampcompat import amp", "import ampcompat"):
        imported(statement)  # bytecode is compiled once, at installation
        rounds = [imported(statement) for _ in range(stated.rounds)]
        of_torch, ours = (statistics.median(column) * 1e3 for column in zip(*rounds))
        print(f"{statement:28} {ours:6.1f} ms after `import torch`, which takes {of_torch:.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "script.py")
        script.write_text("pass\n", encoding="utf-8")
        ways = {"plain": started(str(script)), "ours": started("-m", "ampcompat", "run", str(script))}
        seconds = bench.interleaved(ways, stated.rounds)
    plain, ours = (statistics.median(column) * 1e3 for column in seconds.values())
    print(f"run adds {ours - plain:.0f} ms to a script ({ours:.0f} ms against {plain:.0f} ms)")


if __name__ == "__main__":
    main()
