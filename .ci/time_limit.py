"""Run a command, and end every process that it has started when it ends, or when its time is over.

    python .ci/time_limit.py MINUTES COMMAND ...

The exit code is that of the command, or 124 if its time was over. On Linux a process is found wherever it went: one
whose parent has ended belongs to this process from then on. Elsewhere what is left in the command's group is ended.
"""

import ctypes
import glob
import os
import signal
import subprocess
import sys
import time

TIME_IS_OVER = 124  # as with `timeout` of GNU
SET_DEATH_SIGNAL, BECOME_SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl


def children():
    """Return the ids of the processes whose parent is this one, from /proc; none where there is no /proc."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()  # after the name, which may contain anything
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(path.split("/")[2]))
    return found


def end_all(group):
    """Kill the processes of a group, and then the children of this process until there is none."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group whose processes have ended
        pass
    while True:
        found = children()
        if not found:
            return
        for child in found:
            os.kill(child, signal.SIGKILL)  # its id is its own until it is waited for
            os.waitpid(child, 0)


def wait(process, seconds):
    """Return the exit code of a process, or ``TIME_IS_OVER``; collect what else has ended, as init does elsewhere."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for child in children():
            if child != process.pid:
                os.waitpid(child, os.WNOHANG)
        try:
            return process.wait(0.5)  # to look through /proc takes milliseconds
        except subprocess.TimeoutExpired:
            pass
    return TIME_IS_OVER


def main(minutes, *command):
    """Run a command for at most some minutes; return its exit code, or ``TIME_IS_OVER``."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1)
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGTERM)  # when the process that started this one ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = wait(process, float(minutes) * 60)
    finally:
        end_all(process.pid)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
