"""``run --device``: scripts, modules and children see CUDA redirected; without the option nothing is."""

import os

import pytest
import torch
from helpers import forked
from helpers.processes import ROOT, RUN, environment, python

from ampcompat.support.child_environment import STARTUP, ChildEnvironment

ON_CPU = RUN + ("--device", "cpu")


@pytest.mark.parametrize("name", ["apex.parallel", "amp_C"])  # a submodule of the alias, a module beside it
def test_a_script_may_import_apex_before_torch(script, name):
    path = script(f"import {name}\nimport torch\nprint(torch.ones(1).cuda().is_cuda)")
    done = python(*(ON_CPU + (path,)))
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_every_process_of_a_script_is_redirected_and_those_that_it_spawns_import_amp(script):
    path = script(
        """
        import multiprocessing, os, subprocess, sys
        import torch
        from apex import amp
        from torch.utils.data import DataLoader, Dataset

        def where(index=0):
            amp.initialize
            level = os.environ["AMPCOMPAT_OPT_LEVEL"]
            return "%s %s %s" % (torch.zeros(2, device="cuda").is_cuda, torch.cuda.get_device_name(), level)

        class Numbers(Dataset):
            def __len__(self):
                return 2

            def __getitem__(self, index):
                return where()

        if __name__ == "__main__":
            mine = where()
            assert mine == "True CPU in place of CUDA (ampcompat) O1"
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(where, [0]) == [mine]
            assert [batch for batch, in DataLoader(Numbers(), num_workers=1, pin_memory=True)] == [mine, mine]
            code = "import os, sys, torch; assert 'torch._dynamo' not in sys.modules, 'its import takes seconds'; "
            code += "print(torch.zeros(2).cuda().is_cuda, torch.cuda.get_device_name(), "
            code += "os.environ['AMPCOMPAT_OPT_LEVEL'])"
            assert subprocess.check_output([sys.executable, "-c", code]).decode().strip() == mine
            print("all redirected", sys.argv[1:])
        """
    )
    done = python(*(ON_CPU + ("--opt-level", "O1", path, "--device", "mine")))
    assert done.stdout == "all redirected ['--device', 'mine']\n", done.stderr


def test_a_script_that_does_not_import_torch_stays_without(script):
    done = python(*(ON_CPU + (script("import sys; print('torch' in sys.modules, 'ampcompat.errors' in sys.modules)"),)))
    assert done.stdout == "False False\n", done.stderr


def test_the_users_own_sitecustomize_runs_and_torch_is_imported_as_usual(script, tmp_path):
    script("print('mine first')\nname = 'mine'\n", "site/sitecustomize.py")
    path = script(
        """
        import importlib.util
        import sitecustomize
        assert importlib.util.find_spec("torch").origin.endswith("__init__.py")
        import torch
        assert not vars(torch.__loader__).get("exec_module") and torch.__spec__.loader is torch.__loader__
        print(sitecustomize.name, torch.cuda.is_available())
        torch.cuda.nccl.version()
        """
    )
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path / "site"), ROOT]))
    done = python(*(ON_CPU + (path,)), env=env)
    assert done.stdout.endswith("mine first\nmine True\n"), done.stderr
    assert done.returncode == 1  # what cannot be redirected ends the script with one sentence
    last = done.stderr.splitlines()[-1]
    assert "AmpNotImplementedError: torch.cuda.nccl.version cannot be redirected to cpu: " in last


def test_runs_nest_and_the_inner_option_is_used(script):
    shown = "os.environ['AMPCOMPAT_DEVICE'], os.environ['PYTHONPATH'].count(os.path.join('launch', 'site'))"
    inner = script(f"import os; print({shown})", "in.py")
    path = script(
        "import subprocess, sys\n"
        "for more in ([], ['--device', 'cpu']):\n"
        f"    command = [sys.executable, '-m', 'ampcompat', 'run'] + more + [{inner!r}]\n"
        "    print(subprocess.check_output(command).decode().strip())"
    )
    done = python(*(ON_CPU + (path,)))
    assert done.stdout == "cpu 1\ncpu 1\n", done.stderr


def test_compiled_functions_are_redirected(script):
    if not hasattr(torch, "compiler"):
        pytest.skip("this torch has no compiler, or that of 2.0, which traces no devices")
    path = script(
        """
        import torch

        device = torch.device("cuda:0")

        def function(x):
            y = torch.zeros(2, device=device) + torch.ones(2, device=x.device).cuda()
            return y.to("cuda") + x if isinstance(device, torch.device) else x

        compiled = torch.compile(function, backend="eager", fullgraph=True)
        print(compiled(torch.ones(2)).tolist())
        """
    )
    done = forked.run(forked.command, path, env=environment(AMPCOMPAT_DEVICE="cpu"))
    assert done.stdout == "[2.0, 2.0]\n", done.stderr


def test_the_environment_of_a_child_names_the_folder_once(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["a", STARTUP, "b"]))
    found = ChildEnvironment(device="cpu").to_env()
    assert found == {"AMPCOMPAT_DEVICE": "cpu", "PYTHONPATH": os.pathsep.join([STARTUP, "a", "b"])}


NO_CUDA = "ampcompat: this machine has no CUDA device; try: ampcompat run --device cpu "
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="the scripts fail only where there is no CUDA")


ENDINGS = [
    ("torch.cuda.set_device(0)", True),
    ("torch.zeros(2, device='cuda')", True),
    ("raise RuntimeError('Found no NVIDIA driver on your system.')", True),
    ("raise RuntimeError(\"of a rank: module 'torch._C' has no attribute '_cuda_setDevice'\")", True),
    ("raise ValueError('no more data')", False),
]


@without_cuda
@pytest.mark.parametrize("statement, is_of_cuda", ENDINGS)
def test_below_an_error_of_cuda_and_no_other_there_is_the_command_for_the_cpu(script, statement, is_of_cuda):
    path = script(f"import torch\nfrom apex import amp\n{statement}\n")
    done = forked.run(forked.command, "--opt-level", "O1", path, "--name", "two words")
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and "Traceback (most recent call last):" in lines
    assert (lines[-1] == NO_CUDA + f"--opt-level O1 {path} --name 'two words'") is is_of_cuda
    assert (NO_CUDA in done.stderr) is is_of_cuda


@without_cuda
def test_in_a_process_of_its_own_the_command_is_below_the_traceback_of_the_script(script):
    path = script("import torch\nfrom apex import amp\ntorch.cuda.set_device(0)\n")
    done = python(*(RUN + (path,)))
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and lines[-1] == NO_CUDA + path
    assert lines[0] == "Traceback (most recent call last):" and path in lines[1] and "line 3" in lines[1]
    assert "runpy" not in done.stderr and os.path.join("ampcompat", "cli") not in done.stderr


@without_cuda
def test_an_error_with_the_device_has_no_command_below_it(script):
    env = environment(**ChildEnvironment(device="cpu").variables())  # what `run` sets where it starts Python
    path = script("import torch\nfrom apex import amp\ntorch.cuda.nccl.version()\n")
    done = forked.run(forked.command, "--device", "cpu", path, env=env)
    assert done.returncode == 1 and "Traceback" in done.stderr and NO_CUDA not in done.stderr


@without_cuda
def test_an_error_of_a_script_without_torch_has_no_command_below_it(script):
    done = python(*(RUN + (script("import apex\nraise RuntimeError('No CUDA GPUs, says a script without torch')\n"),)))
    assert done.returncode == 1 and "Traceback" in done.stderr and NO_CUDA not in done.stderr


@without_cuda
@pytest.mark.parametrize("statement, is_of_cuda", [ENDINGS[0], ENDINGS[-1]])
def test_ab_ends_with_the_command_for_the_cpu_after_an_error_of_cuda(script, statement, is_of_cuda):
    path = script(f"import torch\nfrom apex import amp\n{statement}\n")
    done = forked.run(forked.ab, "--levels", "O0", "--no-control", "--steps", "2", path)
    expected = "ampcompat: this machine has no CUDA device; try: ampcompat ab --device cpu --levels O0 --no-control"
    assert done.returncode == 1 and (f"{expected} --steps 2 {path}" in done.stderr) is is_of_cuda
