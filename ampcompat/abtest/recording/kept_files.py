"""Keeps the files that are older than a series of runs: a run that would overwrite one moves it aside, and it is put
back when the run has ended.

Python reports opening, renaming and removing files as audit events (3.8 and newer); ``torch.save`` writes without one.
A file that is replaced is moved, whatever its size. One that is changed in place is copied, up to ``LARGEST_COPY``.
What compiled code of other libraries writes (HDF5, safetensors) is not noticed, nor are folders that are removed.
"""

import contextlib
import functools
import json
import os
import shutil
import stat
import sys
import tempfile
import threading

from ...support.patching import PatchStack

#: Bytes of the largest file that is copied.
LARGEST_COPY = 256 << 20

#: The name of the file that lists what a run has moved aside, in the run's temporary folder.
KEPT = "kept"

_watching = []  # what `watch` watches with, the latest last
_after_save = []  # functions that get the path of each file that `torch.save` has written
_is_keeping = threading.local()  # `value`: whether this thread moves a file, which makes events too


class KeptFiles:
    """Moves files aside.

    Args:
        manifest: a file that lists them for ``put_back``; processes may share it.
        since: when the series began, as ``time.time()``; files that were changed later are its own.
    """

    def __init__(self, manifest, since):
        self._manifest, self._since = manifest, since
        self._own = set()  # paths whose files are this run's from now on, whatever their times say

    def keep(self, path, as_copy=False):
        """Move a file aside if it is older than the series; with ``as_copy``, leave a copy in its place.

        Only the first time: the clock of files is some milliseconds behind that of ``since``.
        """
        path = os.path.abspath(path)
        is_older = path not in self._own and self._is_older(path)
        if is_older and as_copy and os.stat(path).st_size > LARGEST_COPY:
            return
        self._own.add(path)
        if not is_older:
            return
        folder, name = os.path.split(path)
        aside = os.path.join(folder, f".{name}.ampcompat-{os.getpid()}")
        with open(self._manifest, "a", encoding="utf-8") as file:
            file.write(json.dumps([aside, os.path.join(folder, name)]) + "\n")
        with contextlib.suppress(OSError):  # another process has moved it, or the folder is read-only
            os.rename(path, aside)
            if not self._is_older(aside):  # another process moved the older one, and wrote this one
                os.replace(aside, path)
            elif as_copy:
                shutil.copyfile(aside, path)
                shutil.copymode(aside, path)

    def _is_older(self, path):
        try:
            status = os.lstat(path)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size > 0 and status.st_mtime < self._since


def watch(manifest, since, patches):
    """Keep the files that this process overwrites, until ``patches`` is undone; arguments as for ``KeptFiles``."""
    import torch  # here, since processes that only put files back do without

    kept = KeptFiles(manifest, since)
    patches.defer(_watching.remove, kept)
    _watching.append(kept)
    patches.set(torch, "save", _watched_save(kept, torch.save))
    if hasattr(sys, "addaudithook"):
        _add_hook()


def call_after_save(function, patches):
    """Call a function with the path of each file that ``torch.save`` has written while files are watched."""
    patches.defer(_after_save.remove, function)
    _after_save.append(function)


def path_of(file):
    """Return the absolute path of a file that is given by its name or open, or None."""
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return os.path.abspath(os.fspath(name)) if isinstance(name, (str, os.PathLike)) else None


def put_back(manifest):
    """Put back the files that a manifest lists, in place of what was written there; return their paths."""
    if not os.path.exists(manifest):
        return []
    with open(manifest, encoding="utf-8") as file:
        moved = [json.loads(line) for line in file]
    return [path for aside, path in moved if os.path.lexists(aside) and _put_back(aside, path)]


def _put_back(aside, path):
    try:
        os.replace(aside, path)
    except OSError as error:
        print(f"warning: {path} could not be put back ({error.strerror}); it is {aside}", file=sys.stderr)
        return False
    return True


@contextlib.contextmanager
def keeping(since):
    """Keep the files that this process overwrites within the block. The list that it yields gets their paths."""
    found = []
    with tempfile.TemporaryDirectory(prefix="ampcompat-ab-") as folder:
        manifest = os.path.join(folder, KEPT)
        try:
            with PatchStack() as patches:
                watch(manifest, since, patches)
                yield found
        finally:
            found += put_back(manifest)


def _watched_save(kept, save):
    @functools.wraps(save)
    def keep_and_save(obj, f, *args, **kwargs):
        if isinstance(f, (str, os.PathLike)):
            _keep(kept, f)
        result = save(obj, f, *args, **kwargs)
        path = path_of(f)
        for function in [] if path is None else list(_after_save):
            function(path)
        return result

    return keep_and_save


@functools.lru_cache(maxsize=None)
def _add_hook():
    sys.addaudithook(_on_event)  # which cannot be removed


def _on_event(event, args):
    if event == "open":
        path, _, flags = args
        if _watching and isinstance(path, (str, bytes)) and flags & (os.O_WRONLY | os.O_RDWR):
            _keep(_watching[-1], path, as_copy=not flags & os.O_TRUNC)
    elif event == "os.rename" and _watching:
        _keep(_watching[-1], args[0], as_copy=True, follows_links=False)
        _keep(_watching[-1], args[1], follows_links=False)
    elif event == "os.remove" and _watching:
        _keep(_watching[-1], args[0], as_copy=True, follows_links=False)


def _keep(kept, path, as_copy=False, follows_links=True):
    if not getattr(_is_keeping, "value", False):
        _is_keeping.value = True
        try:
            path = os.fsdecode(path)
            kept.keep(os.path.realpath(path) if follows_links else path, as_copy)
        finally:
            _is_keeping.value = False
