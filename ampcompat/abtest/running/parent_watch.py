"""Ends the process of a run soon after the process that started it, however the script spends its time.

So a series that is killed (SIGKILL) leaves neither a training that goes on, nor a temporary folder.
"""

import os
import shutil
import signal
import threading
import time

from ..recording.kept_files import KEPT, put_back

#: Seconds between two looks at the parent, and those that the script gets to end after an interrupt.
POLL_INTERVAL, INTERRUPT_WAIT = 0.2, 1.5


def watch(parent, folder):
    """Start a thread that ends this process when its parent is no longer the process ``parent``.

    Code that keeps Python's lock for long delays it. On Windows a process keeps its parent's id, so nothing is done.

    Args:
        parent: a process id.
        folder: the temporary folder that the parent has made for this run; it is removed, after files that the run has
            overwritten were put back.
    """
    threading.Thread(target=_end_after, args=(parent, folder), daemon=True).start()


def _end_after(parent, folder):
    while os.getppid() == parent:
        time.sleep(POLL_INTERVAL)
    put_back(os.path.join(folder, KEPT))
    shutil.rmtree(folder, ignore_errors=True)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    time.sleep(INTERRUPT_WAIT)
    os.kill(os.getpid(), signal.SIGKILL)
