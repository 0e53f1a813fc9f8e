"""Suites that other projects wrote, from their releases: what passes with plain torch passes under ``ampcompat run``.

Each suite is run by plain Python and with the options of a case. A test that passed plainly must pass again, and one
that plain Python skipped, as for want of a GPU, may pass or be skipped. What else happens is in ``KNOWN``, with its
reason; a row there that no longer holds fails, too.
"""

import functools
import pathlib
import shlex
import sys
import tarfile
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from helpers import client_modules, processes

client_modules.imported("skorch", "peers")


class Suite(NamedTuple):
    """Tests in the source release of a package: their paths, with options of pytest."""

    release: str
    tests: str


#: Where the leg puts what ``releases.txt`` lists.
RELEASES = pathlib.Path(sys.prefix, "releases")


SUITES = {
    "accelerate": Suite(
        "accelerate-1.15.0", "tests/test_optimizer.py tests/test_kwargs_handlers.py tests/test_grad_sync.py"
    ),
    "ignite": Suite("pytorch_ignite-0.5.3", "tests/ignite/engine/test_create_supervised.py"),
    "skorch": Suite("skorch-1.4.0", "skorch/tests/test_hf.py -k ccelerat"),
}
CASES = [
    ("accelerate", "--device cpu"),
    ("accelerate", "--opt-level O1"),
    ("ignite", ""),
    ("ignite", "--device cpu"),
    ("ignite", "--opt-level O1"),
    ("ignite", "--opt-level O2"),
    ("skorch", "--device cpu"),
    ("skorch", "--opt-level O1"),
]

NO_OTHER_DEVICE = "it expects torch's error for a model on the CPU and data on the GPU, which are one device here"
HAS_APEX = "it expects the error for a missing apex"
NO_GPU = "it is skipped where there is a GPU"
KNOWN = {
    ("accelerate", "--device cpu"): {
        "test_accelerated_optimizer_pickling": NO_GPU,
        "test_gradient_sync_cpu_noop": NO_GPU,
        "test_gradient_sync_cpu_multi": NO_GPU,
    },
    ("ignite", ""): {"test_create_supervised_trainer_apex_error": HAS_APEX},
    ("ignite", "--device cpu"): {
        "test_create_supervised_trainer_apex_error": HAS_APEX,
        "test_create_supervised_trainer_on_cuda_with_model_on_cpu": NO_OTHER_DEVICE,
        "test_create_supervised_evaluator_on_cuda_with_model_on_cpu": NO_OTHER_DEVICE,
    },
    ("ignite", "--opt-level O1"): {"test_create_supervised_trainer_apex_error": HAS_APEX},
    ("ignite", "--opt-level O2"): {"test_create_supervised_trainer_apex_error": HAS_APEX},
}


@functools.lru_cache(maxsize=None)
def unpacked(release, folder):
    """Unpack a source release that the leg has downloaded; return its folder."""
    with tarfile.open(RELEASES / f"{release}.tar.gz") as source:
        source.extractall(folder, filter="data")
    return folder / release


@functools.lru_cache(maxsize=None)
def outcomes(suite, root, options=None):
    """Run a suite with the options of ``ampcompat run``, or by plain Python; return {test: "passed", "skipped", …}."""
    report = root / "outcomes.xml"
    command = ["-m", "pytest", "-c", "/dev/null", "--rootdir", root, f"--junitxml={report}", *shlex.split(suite.tests)]
    if options is not None:
        command = [*processes.RUN, *shlex.split(options), *command]
    done = processes.python(*command, cwd=root)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tags = [part.tag for part in case if part.tag != "system-out"]
        found["{classname}::{name}".format(**case.attrib)] = tags[0] if tags else "passed"
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("peers")


@pytest.mark.parametrize("name, options", CASES)
def test_what_passes_with_plain_torch_passes(name, options, folder):
    root = unpacked(SUITES[name].release, folder)
    plain, ours = outcomes(SUITES[name], root), outcomes(SUITES[name], root, options)
    assert ours.keys() == plain.keys() and "passed" in ours.values()
    changes = {test: (plain[test], ours[test]) for test in plain if plain[test] != ours[test]}
    differs = {test for test, change in changes.items() if change != ("skipped", "passed")}
    assert {test.rpartition("::")[2] for test in differs} == set(KNOWN.get((name, options), ()))
