"""Reads and writes files: one function each, for every command and tool."""

import contextlib
import gzip
import os
import stat
import zlib

from ..errors import AmpError

#: Bytes of the largest file that is read, decompressed, unless the user allows more: that takes at most 1 GiB and 10 s.
LARGEST = 32 << 20

#: Of a new file: it must not exist, nor be a link.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def _opened(path):
    """Open a regular file for reading bytes. A pipe, which might wait forever, and a device are errors."""
    try:
        file = open(path, "rb", opener=_open_at_once)
    except OSError as error:
        raise AmpError(f"cannot read {path}: {error.strerror or error}.") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise AmpError(f"cannot read {path}: it is a pipe or a device, not a file.")
    return file


def read(path, largest=LARGEST):
    """Return the bytes of a regular file; one whose name ends in ".gz" is decompressed.

    Raises:
        AmpError: it cannot be opened, is no regular file, or is damaged, or has more than ``largest`` bytes.
    """
    content = bytearray()
    with _opened(path) as file:
        try:
            unpacked = gzip.GzipFile(fileobj=file) if str(path).endswith(".gz") else file
            while len(content) <= largest:
                part = unpacked.read(1 << 20)
                if not part:
                    return bytes(content)
                content += part
        except (OSError, EOFError, zlib.error) as error:
            raise AmpError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    raise AmpError(f"cannot read {path}: it has more than {in_mebibytes(largest)} MiB; --max-size allows more.")


def in_mebibytes(size):
    """Return a number of bytes in MiB, as text."""
    return f"{round(size / (1 << 20), 3):g}"


def _open_at_once(path, flags):
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write(path, content):
    """Write a file, completely or not at all.

    The content goes to a new file in the same folder, which then replaces the old one and has its mode. If ``path`` is
    a link, it stays one, and the file that it leads to is replaced. Pipes and devices are written directly.

    Args:
        content: text or bytes.

    Raises:
        AmpError: the file cannot be written.
    """
    content = content if isinstance(content, bytes) else content.encode("utf-8")
    try:
        if is_stream(path):
            with open(path, "wb") as file:
                file.write(content)
        elif os.path.exists(path) and not os.access(path, os.W_OK):
            raise AmpError(f"cannot write {path}: it is read-only.")
        else:
            _replace(os.path.realpath(path), content)
    except OSError as error:
        raise AmpError(f"cannot write {path}: {error.strerror or error}.") from error


def is_stream(path):
    """Return whether a path is a pipe or a device, or a name for an open file such as /dev/stdout."""
    in_dev = os.path.abspath(path).startswith("/dev/")
    return os.path.exists(path) and not os.path.isdir(path) and (in_dev or not os.path.isfile(path))


def _replace(target, content):
    partial = os.path.join(os.path.dirname(target), f".ampcompat-{os.urandom(8).hex()}.part")
    before = os.stat(target) if os.path.exists(target) else None
    try:
        descriptor = os.open(partial, _NEW, 0o666 if before is None else before.st_mode & 0o777)
        with open(descriptor, "wb") as file:
            if before is not None and hasattr(os, "fchmod"):
                with contextlib.suppress(OSError):  # only root may give a file to its former owner
                    os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, before.st_mode & 0o777)
            file.write(content)
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
        raise
