"""``apex.parallel`` as scripts import it, and its launcher."""

import os
import subprocess
import sys

import pytest
import torch

from ampcompat.apex.parallel import multiproc

pytestmark = pytest.mark.usefixtures("alias")


def launch(folder, source, *arguments):
    (folder / "script.py").write_text(source)
    command = [sys.executable, "-m", "apex.parallel.multiproc", "script.py"] + list(arguments)
    done = subprocess.run(
        command, cwd=str(folder), env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300
    )
    return done.returncode, done.stdout.decode().split()


SCRIPT = "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], *sys.argv[1:])\n"


def test_the_launcher_starts_a_process_per_rank_and_keeps_the_others_output_in_files(tmp_path):
    status, output = launch(tmp_path, SCRIPT, "--epochs", "3", "--world-size", "2")
    assert (status, output) == (0, "0 2 --epochs 3 --world-size 2 --rank 0".split())
    assert (tmp_path / "GPU_1.log").read_text().split() == "1 2 --epochs 3 --world-size 2 --rank 1".split()


def test_the_launcher_ends_all_when_one_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(250)\n"
    (tmp_path / "script.py").write_text(source)
    assert multiproc.main(["script.py", "--world-size=2", "--rank=0"]) == 3


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="with GPUs it starts one process for each")
def test_without_gpus_it_starts_one_process(tmp_path, capfd):
    (tmp_path / "script.py").write_text(SCRIPT)
    assert multiproc.main([str(tmp_path / "script.py")]) == 0
    assert capfd.readouterr().out.split() == "0 1 --world-size 1 --rank 0".split()
