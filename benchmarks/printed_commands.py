"""What commands of ampcompat print, for pages that show it: run as users type them, and written into the pages."""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def printed(folder, command, has_stderr=False):
    """Return what ``ampcompat COMMAND``, read by a shell, prints on a terminal of 80 columns.

    Args:
        folder: where it runs.
        command: the name of a command, and its arguments.
        has_stderr: whether stderr counts too; progress goes there.
    """
    whole = f"{sys.executable} -m ampcompat {command}"
    stderr = subprocess.STDOUT if has_stderr else subprocess.DEVNULL
    env = dict(os.environ, COLUMNS="80")
    done = subprocess.run(whole, shell=True, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=stderr)
    return done.stdout.decode("utf-8")


def write_between(path, begin, end, text):
    """Replace what a page has between two marks."""
    with open(path, encoding="utf-8") as file:
        head, _, rest = file.read().partition(begin)
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + begin + text + end + rest.partition(end)[2])
