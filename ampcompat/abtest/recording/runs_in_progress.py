"""Which runs of a series are in progress on this machine: files are put back when there is none.

A run that has seen that a file is the series' own opens it a moment later. If another run put the older file back in
between, it would be overwritten.
"""

import contextlib
import os
import shutil
import tempfile

from ...errors import AmpError
from ...support.patching import PatchStack
from .kept_files import put_back, watch

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class RunInProgress:
    """A run of a series, as a block of ``with``; it ends with its process if that is killed.

    The runs of a series share a folder: ``manifest`` lists the files that they have moved aside, and is locked while a
    run begins or ends; a run in progress has a shared lock of the file ``runs``. Where files cannot be locked, on
    Windows and on some network file systems, each run is a series of its own.

    Args:
        since: when the series began, as ``time.time()``: runs of one series have the same.
    """

    def __init__(self, since):
        self._has_locks = _has_locks(tempfile.gettempdir())
        own = str(os.getuid()) if self._has_locks else f"{os.getpid()}-{id(self)}"
        self._folder = os.path.join(tempfile.gettempdir(), f"ampcompat-series-{own}-{float(since).hex()}")
        self._runs = None
        self.manifest = os.path.join(self._folder, "kept")
        self.put_back = []  # after the block: the files of the series, if no other run of it was in progress

    def __enter__(self):
        with self._locked():
            self._runs = self._open("runs")
            self._lock(self._runs, shared=True)
        return self

    def __exit__(self, *_):
        with self._locked():
            if self._has_locks:
                fcntl.flock(self._runs, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open, too
            self._runs.close()
            self._put_back()

    def put_back_after_killed_runs(self):
        """Put back what runs have left whose processes were killed, if none is in progress."""
        with self._locked():
            self._put_back()

    def _put_back(self):
        with self._open("runs") as runs:
            is_last = self._lock(runs, waits=False)
        if is_last:
            self.put_back += dict.fromkeys(put_back(self.manifest))
            shutil.rmtree(self._folder, ignore_errors=True)

    def _locked(self):
        """Return the manifest, open and locked: until it is closed, no other run of the series begins or ends."""
        while True:
            with contextlib.suppress(FileNotFoundError):  # the last run has removed the folder meanwhile
                file = self._open("kept")
                self._lock(file)
                if os.fstat(file.fileno()).st_nlink:
                    return file
                file.close()

    def _open(self, name):
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if fcntl is not None and os.stat(self._folder).st_uid != os.getuid():
            raise AmpError(f"{self._folder}, which only you should have, belongs to another user: remove it.")
        return open(os.path.join(self._folder, name), "a")

    def _lock(self, file, shared=False, waits=True):
        """Lock an open file, for all processes and threads; return whether it is locked."""
        if self._has_locks:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                return False
        return True


@contextlib.contextmanager
def keeping(since):
    """Keep the files that this process overwrites within the block, a run of a series.

    The list that it yields gets the paths of those that were put back.
    """
    with RunInProgress(since) as run, PatchStack() as patches:
        watch(run.manifest, since, patches)
        yield run.put_back


def _has_locks(folder):
    """Return whether files of a folder can be locked."""
    if fcntl is None:
        return False
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            return False
    return True
