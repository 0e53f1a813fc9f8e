"""The wheel, the source archive, the legs of CI, and the commands of the README."""

import ast
import glob
import os
import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest
import torch
from processes import ROOT, python

import ampcompat
from ampcompat.abtest.report import renderer
from ampcompat.cli import migrate
from ampcompat.opt_levels import OPT_LEVELS

ALIAS = os.path.join("ampcompat", "apex", "site")


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def readme_commands():
    """Return the README's indented command lines that install a torch and something else."""
    return [line[4:] for line in read("README.md").splitlines() if line.startswith("    pip install torch")]


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


def test_the_source_archive_holds_every_file_that_git_tracks(distributions):
    expected = {"LICENSE", "README.md", "CHANGELOG.md", "noxfile.py", ".ci/run", "tests/clients/table.txt"}
    assert expected - distributions[1] == set()
    git = shutil.which("git") and subprocess.run(["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE)
    if not git or git.returncode or not git.stdout:
        pytest.skip("this is not a git checkout")
    tracked = {name for name in git.stdout.decode().splitlines() if os.path.exists(os.path.join(ROOT, name))}
    assert tracked - distributions[1] == set()


@pytest.mark.parametrize("extra, shown", [("REPORT", renderer.NOT_INSTALLED), ("MIGRATE", migrate.NOT_INSTALLED)])
def test_what_is_said_of_missing_packages_names_those_of_the_extra(extra, shown):
    names = ast.literal_eval(re.search(r"^{} = (.*)$".format(extra), read("setup.py"), re.MULTILINE).group(1))
    command = " ".join("'{}'".format(each) if ">" in each else each for each in names)
    assert "pip install {}.".format(command) in shown


def test_the_requirements_of_ci_are_those_of_the_extras():
    setup, hooks = read("setup.py"), read(".pre-commit-config.yaml")
    for extra in ("LINT", "DOCS"):
        lines = read(".ci", "requirements-{}.txt".format(extra.lower())).splitlines()
        names = [line for line in lines if not line.startswith("#")]
        assert "{} = {}\n".format(extra, str(names).replace("'", '"')) in setup
    ruff = re.search(r"ruff==(\S+)", read(".ci", "requirements-lint.txt")).group(1)
    assert "rev: v{}\n".format(ruff) in hooks


def test_the_workflow_runs_every_leg():
    named = re.findall(r"\{leg: ([\w.-]+),", read(".github", "workflows", "ci.yml"))
    legs = re.search(r'^ALL="(.+) \$\(sed', read(".ci", "run"), re.MULTILINE).group(1).split()
    table = [line.split()[0] for line in read("tests", "clients", "table.txt").splitlines() if line[:1] != "#"]
    assert sorted(named) == sorted(legs + table)


def test_the_version_is_the_newest_release_of_the_changelog_and_the_citation():
    releases = re.findall(r"^## (\d\S+) \((\d{4}-\d\d-\d\d)\)$", read("CHANGELOG.md"), re.MULTILINE)
    assert releases[0][0] == ampcompat.__version__
    assert 'version: {}\ndate-released: "{}"'.format(*releases[0]) in read("CITATION.cff")


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
    given = ("sed -n", "-r $folder/requirements.txt", "-r .ci/requirements-$1.txt")
    assert all(any(each in line for each in given) for line in installing) and "eval" in script


def test_ci_says_which_legs_there_are():
    done = subprocess.run(["bash", os.path.join(ROOT, ".ci", "run"), "nowhere"], stderr=subprocess.PIPE)
    assert done.returncode == 2 and b"main" in done.stderr


def test_the_readmes_levels_are_those_of_the_table():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in read("README.md").splitlines()]
    rows = {row[0]: row for row in rows if row[0] in OPT_LEVELS}
    assert list(rows) == list(OPT_LEVELS)
    for level, policy in OPT_LEVELS.items():
        _, weights, autocast, batch_norm, masters, scale = rows[level]
        assert weights == str(policy.cast_model_type or torch.float32)[len("torch.") :]
        assert (autocast == "no") is not policy.patch_torch_functions
        assert batch_norm == ("float16" if policy.keep_batchnorm_fp32 is False else "float32")
        assert (masters == "float32") is bool(policy.master_weights)
        assert scale == str(policy.loss_scale)
