"""``ampcompat run --opt-level`` of scripts that do not use Apex, in processes of their own."""

import atexit
import sys
import textwrap

import pytest
import torch
from helpers.processes import RUN, environment, python

from ampcompat.errors import AmpError
from ampcompat.launch.forced_levels.forced_level import ForcedLevel, is_supported

needs_forced_levels = pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1")

PLAIN = """
import sys
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum() / 256
    loss.backward()
    optimizer.step()
print(model.weight.dtype, model.state_dict()["weight"].dtype, file=sys.stderr)
"""


@pytest.fixture
def script(tmp_path):
    def write(source):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write


def test_without_a_level_or_a_device_the_script_runs_unchanged_and_nothing_is_loaded_for_it(script):
    shown = "[name for name in sys.modules if name.startswith('ampcompat')], os.environ.get('AMPCOMPAT_DEVICE'), "
    shown += "[entry for entry in sys.path if os.path.join('launch', 'site') in entry], torch.cuda.is_available()"
    done = python(*RUN, script(PLAIN + f"\nimport os\nprint({shown})\n"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[] None [] {torch.cuda.is_available()}\n"
    assert done.stderr.split()[-2:] == ["torch.float32", "torch.float32"]


@needs_forced_levels
def test_a_float32_script_trains_at_the_level_and_on_the_device_of_the_command_line(script):
    path = script(
        PLAIN.replace("model = torch.nn.Linear(4, 1)", "model = torch.nn.Linear(4, 1).cuda()").replace(
            "torch.ones(2, 4)", "torch.ones(2, 4).cuda()"
        )
    )
    done = python(*RUN, "--opt-level", "O5", "--device", "cpu", path)
    assert done.returncode == 0, done.stderr
    (told,) = done.stdout.splitlines()  # not Apex's tables of options
    assert told.startswith("Selected optimization level O5: ")
    assert done.stderr.split()[-2:] == ["torch.bfloat16", "torch.float32"]


def told_at_the_end(train, capsys):
    """Return what a process prints when it ends after ``train()``."""
    level = ForcedLevel("O1", tells_if_unused=True)
    level.begin()
    try:
        kept = train()
        atexit.unregister(level._tell_if_unused)
        level._tell_if_unused()
    finally:
        level.end()
    assert kept is not None
    return capsys.readouterr().err


@needs_forced_levels
def test_a_script_whose_models_are_never_called_in_training_is_told_so(capsys, monkeypatch):
    def train():
        return torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)

    assert told_at_the_end(train, capsys).startswith("ampcompat: opt level O1 was not applied: no module")
    monkeypatch.setattr(sys, "last_value", AmpError("refused"), raising=False)
    assert told_at_the_end(train, capsys) == ""


@needs_forced_levels
def test_a_script_that_updates_weights_without_an_optimizer_is_told_so(capsys):
    def train():
        weight = torch.ones(2, requires_grad=True)
        weight.sum().backward()
        return weight

    assert "O1 was not applied: the script makes no torch.optim optimizer" in told_at_the_end(train, capsys)
    assert told_at_the_end(lambda: torch.ones(1), capsys) == ""


RANKS = r"""
import sys
import torch
import torch.distributed as dist

def train(rank, file):
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), rank + 1.0)).sum() / 256
        (loss * 1e30 if rank == step == 1 else loss).backward()
        optimizer.step()
    weight = model.module.weight
    with open(f"{file}-{rank}", "w") as result:
        result.write(f"{weight.dtype} {model.module.state_dict()['weight'].tolist()}")
    dist.barrier()  # else a rank may abort in its connections to one that has left
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (sys.argv[1],), nprocs=2)
"""


@needs_forced_levels
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_ranks_that_the_script_spawns_train_at_the_level_and_skip_the_same_steps(script, tmp_path):
    env = environment(GLOO_SOCKET_IFNAME="lo")
    done = python(*RUN, "--opt-level", "O2", "--verbosity", "0", script(RANKS), tmp_path / "store", env=env)
    assert done.returncode == 0, done.stderr
    first, second = [(tmp_path / f"store-{rank}").read_text() for rank in range(2)]
    assert first == second and first.startswith("torch.float16 [[") and "nan" not in first and "e+" not in first
