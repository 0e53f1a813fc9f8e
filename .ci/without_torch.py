"""The leg interpreters of .ci/run: what a user sees who installs torch second, and the grammar of this Python."""

import glob
import io
import os
import platform
import subprocess
import sys
import tempfile
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def ampcompat(*arguments):
    """Return what ``python -m ampcompat`` prints."""
    environment = dict(os.environ, PYTHONPATH=ROOT, PYTHONDONTWRITEBYTECODE="1")
    command = (sys.executable, "-m", "ampcompat") + arguments
    return subprocess.check_output(command, env=environment, universal_newlines=True)


def main():
    """Compile every file with warnings as errors, and start the command line."""
    warnings.simplefilter("error")
    for folder in ("ampcompat", "examples"):
        for path in glob.glob(os.path.join(ROOT, folder, "**", "*.py"), recursive=True):
            with io.open(path, encoding="utf-8") as file:
                compile(file.read(), path, "exec")
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "script.py")
        with open(script, "w") as file:
            file.write("import apex; print(apex.__name__, 'runs')")
        assert ampcompat("run", script) == "apex runs\n"
    assert ampcompat("--help").startswith("usage:")
    print(f"leg python {platform.python_version()} without torch: good")


if __name__ == "__main__":
    main()
