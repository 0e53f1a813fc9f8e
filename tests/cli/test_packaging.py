"""The wheel, the source archive, and the examples and commands of the README."""

import collections
import glob
import os
import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest
import torch
from half_kernels import trains_in
from processes import ROOT, python

import ampcompat
from ampcompat import amp
from ampcompat.opt_levels import OPT_LEVELS

ALIAS = os.path.join("ampcompat", "apex", "site")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def readme_commands():
    """Return the README's indented command lines that install something."""
    return [line[4:] for line in read("README.md").splitlines() if line.startswith("    pip install")]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Return the names in a wheel and in a source archive, built from a copy of this checkout."""
    pytest.importorskip("setuptools", reason="setuptools builds the package")
    pytest.importorskip("wheel", reason="older setuptools needs wheel to build one") if _old_setuptools() else None
    copy = str(tmp_path_factory.mktemp("build") / "checkout")
    ignored = shutil.ignore_patterns(".git", "__pycache__", "*.egg-info", "shared", "build", "dist", ".hypothesis")
    shutil.copytree(ROOT, copy, ignore=ignored)
    done = python("setup.py", "-q", "sdist", "bdist_wheel", cwd=copy)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(glob.glob(os.path.join(copy, "dist", "*.whl"))[0]) as wheel:
        in_wheel = set(wheel.namelist())
    with tarfile.open(glob.glob(os.path.join(copy, "dist", "*.tar.gz"))[0]) as archive:
        in_archive = {name.partition("/")[2] for name in archive.getnames()}
    return in_wheel, in_archive


def _old_setuptools():
    import setuptools

    return int(setuptools.__version__.split(".")[0]) < 71


def files_under(folder):
    for parent, folders, names in os.walk(os.path.join(ROOT, folder)):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            yield os.path.relpath(os.path.join(parent, name), ROOT).replace(os.sep, "/")


def test_wheel_and_source_archive_hold_the_whole_package_and_its_alias(distributions):
    expected = set(files_under("ampcompat"))
    assert len([name for name in expected if name.startswith(ALIAS.replace(os.sep, "/"))]) > 20
    for shipped in distributions:
        assert expected - shipped == set()


def test_the_wheel_holds_nothing_else(distributions):
    in_wheel = distributions[0]
    assert {name.partition("/")[0] for name in in_wheel} == {
        "ampcompat",
        "ampcompat-{}.dist-info".format(ampcompat.__version__),
    }


def test_the_source_archive_holds_examples_tests_and_licence(distributions):
    expected = {"LICENSE", "README.md", "CHANGELOG.md", "examples/digits_cnn.py", "tests/processes.py", "noxfile.py"}
    expected |= {name for name in files_under("docs")}
    assert expected - distributions[1] == set()


def test_the_readme_is_short_and_names_the_two_commands():
    assert len(read("README.md").splitlines()) < 150
    first, second = readme_commands()
    assert first.startswith("pip install torch==2.13.0 '.[examples]' && python -m ampcompat run examples/digits_cnn.py")
    assert second == "pip install torch==2.13.0 -e '.[test]' && python -m pytest -n auto --dist loadfile"


def test_ci_runs_the_readmes_second_command():
    script = read(".ci", "run")
    extract = re.search(r"^readme_command\(\) \{\n(.*?)^\}", script, re.MULTILINE | re.DOTALL).group(0)
    command = subprocess.check_output(["bash", "-c", extract + "\nreadme_command"], cwd=ROOT).decode()
    assert command.splitlines() == [readme_commands()[1]]
    # It has no command of its own, but for the packages of clients.
    installing = [line for line in script.splitlines() if "pip install" in line]
    given = ("sed -n", "-r $folder/requirements.txt", "-r $requirements")
    assert all(any(each in line for each in given) for line in installing) and "eval" in script


def test_ci_says_which_legs_there_are():
    done = subprocess.run(["bash", os.path.join(ROOT, ".ci", "run"), "nowhere"], stderr=subprocess.PIPE)
    assert done.returncode == 2 and b"main" in done.stderr


@pytest.mark.skipif(not trains_in(torch.float16), reason="this torch cannot train in float16 on a CPU")
def test_the_readmes_example_runs():
    source = re.search(r"```python\n(.*?)```", read("README.md"), re.DOTALL).group(1)
    names = {}
    exec(source, names)
    assert torch.isfinite(names["loss"])
    assert names["model"].weight.dtype is torch.float16


@pytest.mark.skipif(not trains_in(torch.float16), reason="this torch cannot train in float16 on a CPU")
def test_the_readmes_keywords_are_taken():
    _, source = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    layers = [("body", torch.nn.Linear(2, 2)), ("norm", torch.nn.LayerNorm(2)), ("head", torch.nn.Linear(2, 1))]
    model = torch.nn.Sequential(collections.OrderedDict(layers))
    names = {"torch": torch, "ampcompat": ampcompat, "amp": amp, "model": model}
    names["inputs"] = torch.ones(4, 2)
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    exec(source, names)
    low, high = torch.float16, torch.float32
    assert [param.dtype for param in model.parameters()] == [low] * 2 + [high] * 4


def test_the_readmes_levels_are_those_of_the_table():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in read("README.md").splitlines()]
    rows = {row[0]: row for row in rows if row[0] in OPT_LEVELS}
    assert list(rows) == list(OPT_LEVELS)
    for level, policy in OPT_LEVELS.items():
        _, weights, functions, batch_norm, masters, scale = rows[level]
        assert weights == str(policy.cast_model_type or torch.float32)[len("torch.") :]
        assert (functions == "no autocast") is not policy.patch_torch_functions
        assert batch_norm == ("float16" if policy.keep_batchnorm_fp32 is False else "float32")
        assert (masters == "float32") is bool(policy.master_weights)
        assert scale == str(policy.loss_scale)
