"""``support.files``: a file is written completely or not at all, and keeps its mode and the link that leads to it."""

import errno
import os
import stat

import pytest

from ampcompat.errors import AmpError
from ampcompat.support import files

posix = pytest.mark.skipif(os.name == "nt", reason="modes, links and pipes of POSIX")


def mode_of(path):
    """Return the permissions of a file."""
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("content", ["\u00e9\n", b"\xc3\xa9\n"])
def test_text_and_bytes_are_written(tmp_path, content):
    path = tmp_path / "file"
    path.write_text("before, and longer")
    files.write(str(path), content)
    assert path.read_bytes() == b"\xc3\xa9\n" and os.listdir(tmp_path) == ["file"]


@posix
@pytest.mark.parametrize("mode", [0o600, 0o664, 0o755])
def test_a_file_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "file"
    path.write_text("before")
    path.chmod(mode)
    files.write(path, "after")
    assert mode_of(path) == mode and path.read_text() == "after"


@posix
def test_a_new_file_has_the_mode_that_open_gives_one(tmp_path):
    files.write(tmp_path / "file", "after")
    (tmp_path / "other").write_text("")
    assert mode_of(tmp_path / "file") == mode_of(tmp_path / "other")


@posix
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_one(tmp_path, exists):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    link.symlink_to(target)
    if exists:
        target.write_text("before")
    files.write(link, "after")
    assert link.is_symlink() and target.read_text() == "after" and os.listdir(tmp_path / "folder") == ["target"]


@posix
def test_a_link_planted_under_the_temporary_name_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".ampcompat-{}.part".format("00" * 8)).symlink_to(victim)
    with pytest.raises(AmpError, match="cannot write .*file: File exists"):
        files.write(tmp_path / "file", "after")
    assert victim.read_text() == "precious" and not (tmp_path / "file").exists()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_completed_stays_as_it_was(tmp_path, monkeypatch, error):
    def raises(*args):
        raise error

    (tmp_path / "file").write_text("before")
    monkeypatch.setattr(os, "replace", raises)
    with pytest.raises((AmpError, KeyboardInterrupt)) as raised:
        files.write(tmp_path / "file", "after")
    assert (tmp_path / "file").read_text() == "before" and os.listdir(tmp_path) == ["file"]
    if isinstance(error, OSError):
        assert str(raised.value) == "cannot write {}: No space left on device.".format(tmp_path / "file")


@posix
def test_pipes_and_devices_are_written_directly(tmp_path):
    reading, writing = os.pipe()
    files.write(f"/dev/fd/{writing}", "through the pipe")
    os.close(writing)
    with open(reading) as file:
        assert file.read() == "through the pipe"
    files.write(os.devnull, "nothing")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("name", ["folder", os.path.join("absent", "file")])
def test_what_cannot_be_written_is_one_sentence(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(AmpError, match="^cannot write .*(directory|denied|file|folder).*\\.$"):
        files.write(tmp_path / name, "after")


@posix
@pytest.mark.skipif(os.name != "nt" and os.geteuid() == 0, reason="root may write any file")
def test_a_read_only_file_is_not_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    path.chmod(0o444)
    with pytest.raises(AmpError, match="read-only"):
        files.write(path, "after")
    assert path.read_text() == "before"
