"""``ampcompat estimate``: a step of a script on fake tensors, beside what ``memory_report`` measures."""

import types

import pytest
from helpers import forked, processes

from ampcompat import cli
from ampcompat.abtest.running import subprocess_supervisor
from ampcompat.cli import estimate_command
from ampcompat.diagnostics.estimate.batch_sizes import with_batch_placeholder
from ampcompat.observers.memory.memory_report import BytesByKind, MemoryReport, MemoryUsage
from ampcompat.support.torch_compat import fake_tensors, features

if not features.is_version_within(oldest=fake_tensors.OLDEST):
    pytest.skip("fake tensors go through a step since torch " + fake_tensors.OLDEST, allow_module_level=True)

SCRIPT = """
import sys
import numpy
import torch
from apex import amp

batch = int(sys.argv[1]) if len(sys.argv) > 1 else 32
print("not shown")


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.images = torch.from_numpy(numpy.zeros((8, 3, 16, 16), "float32"))

    def __len__(self):
        return 100000

    def __getitem__(self, index):
        return self.images[index % 8].numpy() + 1, index % 10


torch.manual_seed(0)
loader = torch.utils.data.DataLoader(Images(), batch, shuffle=True, num_workers=2)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(6272, 10)
).cuda()
optimizer = torch.optim.Adam(model.parameters())
model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
for images, classes in loader:
    output = model(images.cuda())
    loss = torch.nn.functional.cross_entropy(output, classes.cuda())
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
    print(loss.item(), (output.argmax(1).cpu() == classes).float().mean().item())
"""

#: After the script's first step the same iteration is measured for real.
MEASURED = (
    SCRIPT.replace("for images, classes in loader:", "def step(images, classes):").replace(
        "    print(loss.item()", "    0 and print(loss.item()"
    )
    + """
import ampcompat
batches = iter(loader)
print(ampcompat.memory_report(model, optimizer, lambda: step(*next(batches))).peak_total, file=sys.stderr)
"""
)


@pytest.fixture(autouse=True)
def runs_are_forked(monkeypatch):
    """Fork the processes of the command from the server."""
    faked = types.SimpleNamespace(**vars(subprocess_supervisor.subprocess))
    faked.Popen = forked.popen_run
    monkeypatch.setattr(subprocess_supervisor, "subprocess", faked)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_the_prediction_on_this_cpu_is_what_is_measured_there(script, tmp_path):
    found = estimate_command.predicted([script, "16"], None, "cpu")
    measured = tmp_path / "measured.py"
    measured.write_text(MEASURED.replace(".cuda()", "").replace("num_workers=2", "num_workers=0"))
    done = forked.run(forked.command, str(measured), "16")
    assert done.returncode == 0, done.stderr
    assert found.peak_total == pytest.approx(int(done.stderr.split()[-1]), rel=0.02)
    assert (found.level, found.num_params, found.notes) == ("O2", 63690, [])


def test_one_prediction_is_a_table_and_says_whether_it_fits(script, capsys):
    assert cli.main(["estimate", "--opt-level", "O1,O2", "--memory", "1MiB", script]) == 0
    output = capsys.readouterr().out
    assert "Predicted at O1 for 63,690 params, on a GPU" in output and "Predicted at O2" in output
    assert output.count("It does not fit into 1MiB.") == 2 and "not shown" not in output


def test_batch_sizes_are_filled_in_and_the_largest_one_that_fits_is_found(script, capsys):
    assert cli.main(["estimate", "--opt-level", "O0", "--memory", "6MiB", script, "{batch}"]) == 0
    told, colon, size = capsys.readouterr().out.rpartition(": ")
    assert told == "The largest batch size that fits into 6MiB at O0" and 4 < int(size) < 64


WITHOUT_APEX = """
import argparse
import numpy
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
batch_size = parser.parse_args().batch_size
data, block = torch.from_numpy(numpy.arange(1000) % 50), 256
model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 64), torch.nn.Linear(64, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    places = torch.randint(len(data) - block, (batch_size,))
    inputs = torch.stack([data[place : place + block] for place in places])
    loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), inputs.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_batches_that_are_cut_out_of_the_data_by_random_integers_have_their_size(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_APEX)
    one, two = (estimate_command.predicted([str(script), "--batch-size", size], "O0", "cuda") for size in "24")
    assert one.notes == [] and one.peak_by_kind.activations > 2 * 256 * (16 + 64 + 50) * 4
    assert two.peak_by_kind.activations == pytest.approx(2 * one.peak_by_kind.activations, rel=0.01)


def test_a_script_without_apex_is_predicted_at_levels_with_the_largest_batch_of_its_own_option(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_APEX)
    assert cli.main(["estimate", "--memory", "8MiB", str(script)]) == 0
    output, told = capsys.readouterr()
    assert [f"Predicted at {level} " in output for level in ("O0", "O1", "O2")] == [True] * 3
    assert output.count("It fits into 8MiB.") == 3
    sizes = [int(line.split()[-1]) for line in output.splitlines() if "The largest --batch-size that fits" in line]
    assert len(sizes) == 3 and 2 < sizes[0] < min(sizes[1:])
    assert "O0, batch size 1: " in told


@pytest.mark.parametrize(
    "places, told",
    [
        ("(torch.rand(batch_size) * 700).long()", "The step's batches, or other tensors, are empty"),
        ("torch.arange(7)", "does not grow with the batch size"),
    ],
)
def test_empty_batches_and_those_of_another_size_than_asked_are_refused(tmp_path, capsys, places, told):
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_APEX.replace("torch.randint(len(data) - block, (batch_size,))", places))
    assert cli.main(["estimate", "--opt-level", "O0", "--memory", "1GiB", str(script), "--batch-size", "{batch}"]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, option, searched",
    [
        (["--batch_size", "8", "--lr", "1"], "--batch_size", ["--batch_size", "{batch}", "--lr", "1"]),
        (["--train-batch-size=8"], "--train-batch-size", ["--train-batch-size={batch}"]),
        (["--eval-batch-size", "8"], "--batch-size", ["--eval-batch-size", "8", "--batch-size", "{batch}"]),
    ],
)
def test_the_batch_size_is_found_in_the_arguments_or_in_the_options_that_the_script_declares(
    tmp_path, arguments, option, searched
):
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_APEX)
    found = with_batch_placeholder([str(script)] + arguments, "{batch}")
    assert found == (option, [str(script)] + searched)
    script.write_text("")
    assert with_batch_placeholder([str(script)], "{batch}") == (None, [str(script)])


def test_ctrl_c_tells_which_batch_size_fits_so_far(script, capsys, monkeypatch):
    def made(command, level, device):
        if command[-1] != "1":
            raise KeyboardInterrupt
        kinds = BytesByKind(activations=1)
        return MemoryReport("O1", 1, MemoryUsage(kinds, kinds), [])

    monkeypatch.setattr(estimate_command, "predicted", made)
    assert cli.main(["estimate", "--memory", "1GiB", "--opt-level", "O1", script, "{batch}"]) == 130
    assert "O1: 1 fits, or more\nampcompat estimate: interrupted\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, told",
    [
        (("cross_entropy(output, classes.cuda())", "mse_loss(output[output > 0], output[output > 0])"), "index"),
        (("import numpy\n", "import numpy\n1 / 0\n"), "ZeroDivisionError"),
        (("import numpy\n", "sys.exit(3)\n"), "exited, with 3"),
        (("    optimizer.step()\n", ""), "ended before a second optimizer.step()"),
    ],
    ids=["values", "error", "exit", "no step"],
)
def test_what_could_not_be_measured_is_told(script, tmp_path, capsys, change, told):
    path = tmp_path / "changed.py"
    path.write_text(SCRIPT.replace(*change).replace("return 100000", "return 64"))
    assert cli.main(["estimate", str(path)]) == 1
    output = capsys.readouterr()
    assert told in output.err and not output.out


GAN = """
import torch
from apex import amp
nets = [torch.nn.Linear(32, 4096), torch.nn.Linear(4096, 32)]
optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5) for net in nets]
nets, optimizers = amp.initialize(nets, optimizers, opt_level="O1", num_losses=2, verbosity=0)
while True:
    made = nets[0](torch.randn(64, 32))
    for index, value in ((1, made.detach()), (1, made.detach()), (0, made)):
        with amp.scale_loss(nets[1](value).float().pow(2).mean(), optimizers[index], loss_id=index) as loss:
            loss.backward()
        optimizers[index].step()
        optimizers[index].zero_grad()
"""


def test_a_step_of_two_optimizers_ends_with_the_one_that_steps_last(tmp_path):
    path = tmp_path / "gan.py"
    path.write_text(GAN)
    found = estimate_command.predicted([str(path)], None, "cuda")
    params = 2 * 32 * 4096 + 4096 + 32
    assert found.num_params == params and found.peak_by_kind.optimizer == pytest.approx(4 * params, rel=0.01)
    assert found.peak_by_kind.activations >= 64 * 4096 * 2  # the generator's output, in half


def test_a_real_process_gets_the_module_search_path_of_the_script(tmp_path, monkeypatch):
    monkeypatch.undo()
    (tmp_path / "beside.py").write_text("LEVEL = 'O2'\n")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("import numpy\n", "import numpy\nfrom beside import LEVEL\n"))
    done = processes.python("-m", "ampcompat", "estimate", str(path))
    assert done.returncode == 0, done.stderr
    assert "Predicted at O2" in done.stdout
