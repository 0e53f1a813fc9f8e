"""The wheel, the source archive, the legs of CI, and the commands of the README."""

import glob
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from email.parser import HeaderParser

import pytest
import torch
from helpers.processes import ROOT, python, read
from packaging.requirements import Requirement

import ampcompat
from ampcompat.abtest.report import renderer
from ampcompat.cli import migrate_command
from ampcompat.opt_levels import OPT_LEVELS

ALIAS = os.path.join("ampcompat", "apex", "site")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Return the names in a wheel and in a source archive, built from this checkout, and the wheel's metadata."""
    pytest.importorskip("setuptools", reason="setuptools builds the package")
    pytest.importorskip("wheel", reason="older setuptools needs wheel to build one") if _old_setuptools() else None
    copy = str(tmp_path_factory.mktemp("build") / "checkout")
    ignored = shutil.ignore_patterns(".git", "__pycache__", "*.egg-info", "shared", "build", "dist", ".hypothesis")
    shutil.copytree(ROOT, copy, ignore=ignored)
    done = python("setup.py", "-q", "sdist", "bdist_wheel", cwd=copy)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(glob.glob(os.path.join(copy, "dist", "*.whl"))[0]) as wheel:
        in_wheel = set(wheel.namelist())
        (name,) = [name for name in in_wheel if re.match(r"ampcompat-.*/METADATA$", name)]
        metadata = HeaderParser().parsestr(wheel.read(name).decode("utf-8"))
    with tarfile.open(glob.glob(os.path.join(copy, "dist", "*.tar.gz"))[0]) as archive:
        in_archive = {name.partition("/")[2] for name in archive.getnames()}
    return in_wheel, in_archive, metadata


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
    for shipped in distributions[:2]:
        assert expected - shipped == set()


def test_the_wheel_holds_nothing_else(distributions):
    in_wheel = distributions[0]
    assert {name.partition("/")[0] for name in in_wheel} == {
        "ampcompat",
        f"ampcompat-{ampcompat.__version__}.dist-info",
    }


def test_the_source_archive_holds_every_file_that_git_tracks(distributions):
    expected = {"LICENSE", "README.md", "CHANGELOG.md", "noxfile.py", ".ci/run", "tests/clients/table.txt"}
    assert expected - distributions[1] == set()
    git = shutil.which("git") and subprocess.run(["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE)
    if not git or git.returncode or not git.stdout:
        pytest.skip("this is not a git checkout")
    tracked = {name for name in git.stdout.decode().splitlines() if os.path.exists(os.path.join(ROOT, name))}
    assert tracked - distributions[1] == set()


def requirements(metadata, extra=None):
    """Return the requirements of the package that need no extra, or those of an extra, as the metadata has them."""
    found = [Requirement(text) for text in metadata.get_all("Requires-Dist")]
    wanted = [each for each in found if not each.marker or extra and each.marker.evaluate({"extra": extra})]
    return {str(each.name) + str(each.specifier) for each in wanted if (each.marker is None) is (extra is None)}


def test_the_metadata_is_that_of_the_project(distributions):
    metadata = distributions[2]
    assert (metadata["Name"], metadata["Version"]) == ("ampcompat", ampcompat.__version__)
    assert (metadata["License"], metadata["Requires-Python"]) == ("BSD-3-Clause", ">=3.7")
    oldest = re.search(r"^[\d.]+", read(".ci", "torch_versions.txt"), re.MULTILINE).group()
    assert requirements(metadata) == {"torch>=" + oldest, "packaging"}
    assert metadata.get_payload() == read("README.md")


@pytest.mark.parametrize(
    "extra, shown", [("report", renderer.NOT_INSTALLED), ("migrate", migrate_command.NOT_INSTALLED)]
)
def test_what_is_said_of_missing_packages_names_those_of_the_extra(distributions, extra, shown):
    assert "pip install " in shown
    named = shown.partition("pip install ")[2].rstrip(".").replace("'", "").split()
    assert set(named) == requirements(distributions[2], extra)


def test_the_hooks_before_a_commit_run_the_ruff_of_ci(distributions):
    (ruff,) = requirements(distributions[2], "lint")
    assert "rev: v{}\n".format(ruff.partition("==")[2]) in read(".pre-commit-config.yaml")


def test_the_version_is_the_newest_release_of_the_changelog_and_the_citation():
    releases = re.findall(r"^## (\d\S+) \((\d{4}-\d\d-\d\d)\)$", read("CHANGELOG.md"), re.MULTILINE)
    assert releases[0][0] == ampcompat.__version__
    assert 'version: {}\ndate-released: "{}"'.format(*releases[0]) in read("CITATION.cff")


def test_the_readme_is_short_begins_with_the_installation_and_ends_with_the_command_of_the_tests():
    assert len(read("README.md").splitlines()) <= 130
    lines = read("README.md").splitlines()
    first, last = [line for line in lines if line.startswith("    pip install ")]
    assert first.startswith("    pip install . ")
    assert last == lines[-1] == "    pip install torch==2.13.0 -e '.[test]' && python -m pytest -n auto --dist loadfile"


def test_the_readmes_levels_are_those_of_the_table():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in read("README.md").splitlines()]
    rows = {row[0]: row for row in rows if row[0] in OPT_LEVELS}
    assert list(rows) == list(OPT_LEVELS)
    for level, policy in OPT_LEVELS.items():
        _, weights, autocast, batch_norm, masters, scale, *_ = rows[level]
        assert weights == str(policy.cast_model_type or torch.float32)[len("torch.") :]
        assert (autocast == "no") is not policy.patch_torch_functions
        assert batch_norm == ("float16" if policy.keep_batchnorm_fp32 is False else "float32")
        assert (masters == "float32") is bool(policy.master_weights)
        assert scale == str(policy.loss_scale)
