"""What tests of commands that run scripts share."""

import textwrap

import pytest


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script, whose text may be indented, and returns its path."""

    def write(source, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return str(path)

    return write
