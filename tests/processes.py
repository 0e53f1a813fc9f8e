"""Start Python processes for tests of command lines.

They import ampcompat from this checkout by PYTHONPATH, whether it is installed or not.
"""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUN = ("-m", "ampcompat", "run")


def environment(**changes):
    """Return an environment in which ``ampcompat`` is importable and nothing overrides a script."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AMPCOMPAT_")}
    env.update(PYTHONPATH=ROOT, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    env.update(changes)
    return env


def python(*arguments, **options):
    """Run this interpreter (or ``executable``) and return the finished process, its output as text."""
    executable = options.pop("executable", sys.executable)
    options.setdefault("env", environment())
    return subprocess.run(
        [executable] + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=300,
        **options,
    )
