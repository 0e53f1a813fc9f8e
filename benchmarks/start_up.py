"""What importing ampcompat adds to importing torch, and what ``run`` adds to starting a script.

Prints medians of interleaved rounds, each in a fresh interpreter:

    import      `import torch` against `import torch; from ampcompat import amp`, measured inside the interpreter
    run         `python script.py` against `python -m ampcompat run script.py`, whole processes, for a script that
                imports nothing (the worst case for the ratio)

    python benchmarks/start_up.py [--rounds 15]
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

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


def started(arguments):
    """Return the seconds that a process takes from start to end."""
    start = time.perf_counter()
    subprocess.run([sys.executable] + arguments, check=True, env=ENVIRONMENT)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    stated = parser.parse_args()
    print(f"python {sys.version.split()[0]}, {stated.rounds} rounds")
    for statement in ("from ampcompat import amp", "import ampcompat"):
        imported(statement)  # bytecode is compiled once, at installation
        rounds = [imported(statement) for _ in range(stated.rounds)]
        of_torch, ours = (statistics.median(column) * 1e3 for column in zip(*rounds))
        print(f"{statement:28} {ours:6.1f} ms after `import torch`, which takes {of_torch:.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("pass\n")
        ways = {"python script.py": [script], "python -m ampcompat run script.py": ["-m", "ampcompat", "run", script]}
        seconds = {way: [] for way in ways}
        for _ in range(stated.rounds):
            for way, arguments in ways.items():
                seconds[way].append(started(arguments) * 1e3)
    plain, ours = (statistics.median(column) for column in seconds.values())
    print(f"run adds {ours - plain:.0f} ms to a script ({ours:.0f} ms against {plain:.0f} ms)")


if __name__ == "__main__":
    main()
