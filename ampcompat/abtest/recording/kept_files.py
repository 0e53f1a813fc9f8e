"""Keeps the files that are older than a series of runs: a run that would overwrite one moves it aside, and it is put
back when the run has ended.

Python reports opening, renaming and removing files, setting their times, and deleting folders, as audit events (3.8
and newer); ``torch.save`` and safetensors write without one. A file that is replaced is moved, whatever its size. One
that is changed in place is copied, up to ``LARGEST_COPY``. What compiled code of other libraries (HDF5) or another
program writes is not noticed.
"""

import contextlib
import functools
import importlib
import json
import os
import shutil
import stat
import sys
import threading

#: Bytes of the largest file that is copied.
LARGEST_COPY = 256 << 20

#: Seconds by which the clock of files may be behind ``time.time()``: a tick of the kernel, at most 10 ms.
CLOCK = 0.02

_watching = []  # what `watch` watches with, the latest last
_after_save = []  # functions that get the path of each file that `torch.save` has written
_is_keeping = threading.local()  # `value`: whether this thread moves files


class KeptFiles:
    """Moves files aside.

    Args:
        manifest: a file that lists them for ``put_back``; processes may share it.
        since: when the series began, as ``time.time()``; files that were changed later are its own.
    """

    def __init__(self, manifest, since):
        self._manifest, self._since = manifest, since
        self._own = set()  # (device, inode) of the series' own files whose times the script sets, as a copy's are

    def keep(self, path, as_copy=False, into=None):
        """Move a file aside if it is older than the series; with ``as_copy``, leave a copy in its place.

        Args:
            into: a folder that is made for it; None: the file's own.
        """
        path = os.path.abspath(path)
        if not self._is_older(path) or (as_copy and os.stat(path).st_size > LARGEST_COPY):
            return
        folder, name = os.path.split(path)
        aside = os.path.join(into or folder, f".{name}.ampcompat-{os.getpid()}")
        with open(self._manifest, "a", encoding="utf-8") as file:
            file.write(json.dumps([aside, os.path.join(folder, name)]) + "\n")
        with contextlib.suppress(OSError):  # another process has moved it, or the folder is read-only
            os.makedirs(os.path.dirname(aside), exist_ok=True)
            os.rename(path, aside)
            if not self._is_older(aside):  # another process moved the older one, and wrote this one
                os.replace(aside, path)
            elif as_copy:
                shutil.copyfile(aside, path)
                shutil.copymode(aside, path)

    def keep_folder(self, folder):
        """Move the files of a folder that are older than the series into one beside it."""
        parent, name = os.path.split(os.path.abspath(folder))
        beside = os.path.join(parent, f".{name}.ampcompat-{os.getpid()}")
        for inner, _, files in os.walk(folder):
            into = os.path.normpath(os.path.join(beside, os.path.relpath(inner, folder)))
            for file in files:
                self.keep(os.path.join(inner, file), into=into)

    def keep_before_time_is_set(self, path):
        """Keep a file that is older than the series; note one that is not, which may look older afterwards."""
        self.keep(path, as_copy=True)
        if not self._is_older(path):
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                self._own.add((status.st_dev, status.st_ino))

    def _is_older(self, path):
        try:
            status = os.lstat(path)
        except OSError:
            return False
        if (status.st_dev, status.st_ino) in self._own:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size > 0 and status.st_mtime < self._since - CLOCK


def watch(manifest, since, patches):
    """Keep the files that this process overwrites, until ``patches`` is undone; arguments as for ``KeptFiles``."""
    import torch  # here, since processes that only put files back do without

    kept = KeptFiles(manifest, since)
    patches.defer(_watching.remove, kept)
    _watching.append(kept)
    patches.wrap(torch, "save", _keep_and_save)
    _watch_safetensors(patches)
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
        moved = [json.loads(line) for line in file][::-1]  # a file may have been moved aside twice
    with _unwatched():
        found = [path for aside, path in moved if os.path.lexists(aside) and _put_back(aside, path)]
    return [path for path in found[::-1] if os.path.lexists(path)]


def _put_back(aside, path):
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.replace(aside, path)
        with contextlib.suppress(OSError):  # it has other files
            os.removedirs(os.path.dirname(aside))
    except OSError as error:
        print(f"warning: {path} could not be put back ({error.strerror}); it is {aside}", file=sys.stderr)
        return False
    return True


def _keep_and_save(save, obj, f, *args, **kwargs):
    if isinstance(f, (str, os.PathLike)):
        _keep_now(os.path.realpath(f))
    result = save(obj, f, *args, **kwargs)
    path = path_of(f)
    for function in [] if path is None else list(_after_save):
        function(path)
    return result


def _watch_safetensors(patches):
    """Watch the function by which the modules of safetensors write; those that are imported later get it from here."""
    with contextlib.suppress(ImportError):
        importlib.import_module("safetensors")
    for name in ("safetensors", "safetensors.torch", "safetensors.numpy"):
        if hasattr(sys.modules.get(name), "serialize_file"):
            patches.wrap(sys.modules[name], "serialize_file", _keep_and_write)


def _keep_and_write(write, tensors, filename, *args, **kwargs):
    _keep_now(os.path.realpath(filename))
    return write(tensors, filename, *args, **kwargs)


@functools.lru_cache(maxsize=None)
def _add_hook():
    sys.addaudithook(_on_event)  # which cannot be removed


def _on_event(event, args):
    if not _watching:
        return
    if event == "open":
        path, _, flags = args
        if isinstance(path, (str, bytes)) and flags & (os.O_WRONLY | os.O_RDWR):
            _keep_now(os.path.realpath(path), as_copy=not flags & os.O_TRUNC)
    elif event == "os.rename":
        _keep_now(args[0], as_copy=True)
        _keep_now(args[1])
    elif event == "os.remove" and args[1] == -1:  # not relative to an open folder, as in ``rmtree``
        _keep_now(args[0], as_copy=True)
    elif event == "os.utime" and isinstance(args[0], (str, bytes, os.PathLike)) and args[3] == -1:
        _keep_now(args[0], KeptFiles.keep_before_time_is_set)
    elif event == "shutil.rmtree" and args[1:] in ((), (None,)) and not os.path.islink(args[0]):
        _keep_now(args[0], KeptFiles.keep_folder)


def _keep_now(path, keep=KeptFiles.keep, **options):
    """Keep a file or folder, unless this thread is moving files, or nothing watches any more."""
    if _watching and not getattr(_is_keeping, "value", False):
        with _unwatched():
            keep(_watching[-1], os.fsdecode(path), **options)


@contextlib.contextmanager
def _unwatched():
    """Move files in this thread, which makes events too."""
    _is_keeping.value = True
    try:
        yield
    finally:
        _is_keeping.value = False
