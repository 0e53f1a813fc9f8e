"""Suites that other projects wrote, from their releases: what passes with plain torch passes under ``ampcompat run``.

Each suite is run by plain Python and with the options of a case. A test that passed plainly must pass again, and one
that plain Python skipped, as for want of a GPU, may pass or be skipped. What else happens is in ``KNOWN``, with its
reason; a row there that no longer holds fails, too.
"""

import functools
import os
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
    """Tests in the source release of a package: their paths, with options of pytest.

    With ``level_by_test``, what the files do when they are imported runs without the level: ``forced_each_test``.
    """

    release: str
    tests: str
    level_by_test: bool = False


#: Where the leg puts what ``releases.txt`` lists.
RELEASES = pathlib.Path(sys.prefix, "releases")


WRAPPERS = "SAM::test_sam_optimizer WSAM BSAM PCGrad::test_pc_grad_optimizers TRAC::test_trac_optimizer".split()
SUITES = {
    "accelerate": Suite(
        "accelerate-1.15.0", "tests/test_optimizer.py tests/test_kwargs_handlers.py tests/test_grad_sync.py"
    ),
    "ignite": Suite("pytorch_ignite-0.5.3", "tests/ignite/engine/test_create_supervised.py"),
    "skorch": Suite("skorch-1.4.0", "skorch/tests/test_hf.py -k ccelerat"),
    "pytorch_optimizer": Suite(
        "pytorch_optimizer-4.1.0",
        "-p forced_each_test --every 12 tests/test_optimizers.py::TestOptimizerTraining "
        + " ".join(f"tests/test_wrapper_optimizers.py::Test{each}" for each in WRAPPERS),
        level_by_test=True,
    ),
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
    ("pytorch_optimizer", "--device cpu"),
    ("pytorch_optimizer", "--opt-level O1"),
    ("pytorch_optimizer", "--opt-level O2"),
]

NO_OTHER_DEVICE = "it expects torch's error for a model on the CPU and data on the GPU, which are one device here"
HAS_APEX = "it expects the error for a missing apex"
NO_GPU = "it is skipped where there is a GPU"
SKIPS = "one of its few steps is skipped, until the loss scale fits"
BETWEEN = "an overflow between its two steps is an error that says so"
EARLIER_COPIES = "it copies the weights when it is made, before the level gives the optimizer its masters"
SECOND_DERIVATIVES = "half weights have no second derivatives: masters are updated from first ones"
OF_OPTIMIZERS = {
    "test_training[dadaptadan": SKIPS,
    "test_tensor_lr[True-dadaptadan": SKIPS,
    "test_training[bcos": SKIPS,
    "test_sam_optimizer[asgd-False-LookSAM-True-True]": BETWEEN,
}
OF_HALF_WEIGHTS = {"test_training[lookahead": EARLIER_COPIES, "test_training[adahessian": SECOND_DERIVATIVES}
#: The name of a test, up to the options of an optimizer if it has any.
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
    ("pytorch_optimizer", "--opt-level O1"): OF_OPTIMIZERS,
    ("pytorch_optimizer", "--opt-level O2"): {**OF_OPTIMIZERS, **OF_HALF_WEIGHTS},
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
    if suite.level_by_test and options and "--opt-level" in options:
        command += ["--forced-level", options.split()[-1]]
    elif options is not None:
        command = [*processes.RUN, *shlex.split(options), *command]
    env = processes.environment(PYTHONPATH=os.pathsep.join([processes.ROOT, str(pathlib.Path(__file__).parent)]))
    done = processes.python(*command, cwd=root, env=env)
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
    assert {test.rpartition("::")[2].split("_(")[0] for test in differs} == set(KNOWN.get((name, options), ()))
