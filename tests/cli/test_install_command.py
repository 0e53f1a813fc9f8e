"""``ampcompat install`` and ``uninstall``, in a real virtual environment of its own."""

import os
import sys
import sysconfig
import venv

import pytest
from helpers.processes import ROOT, environment, python

IMPORT = "import sys, apex; print(apex.__file__); print(sorted({'torch', 'ampcompat'} & set(sys.modules)))"


class Environment:
    """A virtual environment without pip, whose Python finds ampcompat in this checkout and torch where we have it."""

    def __init__(self, folder):
        venv.create(folder, with_pip=False)
        self.executable = os.path.join(folder, "Scripts" if os.name == "nt" else "bin", "python")
        self.site = self.python("-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").stdout.strip()
        self.pth = os.path.join(self.site, "ampcompat-apex.pth")

    def python(self, *arguments, **options):
        path = os.pathsep.join([ROOT, sysconfig.get_paths()["purelib"]])
        options.setdefault("env", environment(PYTHONPATH=path))
        return python(*arguments, executable=self.executable, **options)

    def ampcompat(self, *arguments):
        return self.python("-W", "error", "-m", "ampcompat", *arguments)

    def add_package(self, *names):
        """Put empty packages into site-packages: what ``pip install`` of another apex would do."""
        for name in names:
            folder = os.path.join(self.site, *name.split("."))
            os.makedirs(folder)
            with open(os.path.join(folder, "__init__.py"), "w") as file:
                file.write(f"where = {name!r}\n")


@pytest.fixture
def env(tmp_path):
    return Environment(str(tmp_path / "env"))


def plain_python(env, source=IMPORT):
    """Run plain Python as a user does, without the PYTHONPATH of these tests."""
    variables = environment()
    del variables["PYTHONPATH"]
    return env.python("-W", "error", "-c", source, env=variables)


def test_plain_python_imports_apex_after_install_and_not_after_uninstall(env):
    assert "No module named" in plain_python(env).stderr
    before = sorted(os.listdir(env.site))
    done = env.ampcompat("install")
    assert done.returncode == 0 and env.pth in done.stdout and done.stderr == ""
    assert sorted(set(os.listdir(env.site)) - set(before)) == ["ampcompat-apex.pth"]
    path, loaded = plain_python(env).stdout.splitlines()
    assert path.endswith(os.path.join("ampcompat", "apex", "site", "apex", "__init__.py"))
    assert loaded == "[]"
    child = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import apex']))"
    assert plain_python(env, child).returncode == 0
    if sys.version_info >= (3, 8):  # importlib.metadata
        metadata = "import importlib.metadata as m; print(m.version('apex'), m.metadata('apex')['Summary'])"
        assert plain_python(env, metadata).stdout.startswith("0.1 ampcompat's stand-in")
    done = env.ampcompat("uninstall")
    assert done.returncode == 0 and env.pth in done.stdout
    assert sorted(os.listdir(env.site)) == before
    assert "No module named" in plain_python(env).stderr


def test_install_and_uninstall_may_be_repeated(env):
    assert [env.ampcompat("install").returncode for _ in range(2)] == [0, 0]
    with open(env.pth) as file:
        assert len(file.readlines()) == 1
    count = "import sys; print(sum(entry.endswith('site') and 'ampcompat' in entry for entry in sys.path))"
    assert env.python("-c", count).stdout == "1\n"
    assert [env.ampcompat("uninstall").returncode for _ in range(2)] == [0, 0]
    assert "Nothing to undo" in env.ampcompat("uninstall").stdout


def test_an_apex_with_amp_is_not_replaced(env):
    env.add_package("apex", "apex.amp")
    done = env.ampcompat("install")
    assert done.returncode == 2 and not os.path.exists(env.pth)
    assert len(done.stderr.splitlines()) == 1 and os.path.join(env.site, "apex") in done.stderr


@pytest.mark.parametrize(
    "packages, says",
    [(("apex", "apex.models"), "a web toolkit"), (("apex", "apex.optimizers"), "no longer has an amp")],
    ids=["the unrelated apex", "an Apex of today"],
)
def test_another_apex_is_named_in_one_sentence_and_ours_comes_first(env, packages, says):
    env.add_package(*packages)
    done = env.ampcompat("install")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2 and says in done.stdout and os.path.join(env.site, "apex") in done.stdout
    assert os.path.join("ampcompat", "apex", "site") in plain_python(env).stdout
    assert env.ampcompat("uninstall").returncode == 0
    assert plain_python(env).stdout.startswith(os.path.join(env.site, "apex"))


def test_a_site_packages_that_is_not_writable_is_one_clear_error(env):
    os.mkdir(env.pth)  # stands for a folder without permission, which root would not notice
    for command in ("install", "uninstall"):
        done = env.ampcompat(command)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
        assert "cannot " in done.stderr and env.pth in done.stderr
