"""``run --stats-every``: each number against float64, in the steps that were asked for, and nothing in the others."""

import csv
import math

import pytest
import torch
from helpers import loops, precision
from helpers.processes import run_in_process

import ampcompat
from ampcompat import amp
from ampcompat.errors import AmpValueError
from ampcompat.observers.step_statistics import tensor_statistics
from ampcompat.observers.values import SUMMARY, summary

pytestmark = pytest.mark.skipif(precision.IS_STAND_IN, reason="this torch cannot train in half on a CPU")


def reference(tensor, dtype, scale=1.0):
    """Compute the summary value by value, in Python."""
    values = [abs(value) for value in tensor.double().reshape(-1).tolist()]
    finite = [value for value in values if math.isfinite(value)]
    held = [torch.tensor(value * scale, dtype=torch.float32).to(dtype).item() for value in values]
    tiny = torch.finfo(dtype).tiny
    return [
        max(finite, default=0.0),
        sum(finite) / max(len(finite), 1),
        sum(value == 0 for value in held) / len(held),
        sum(0 < value < tiny for value in held) / len(held),
        sum(not math.isfinite(value) for value in held) / len(held),
    ]


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32))
@pytest.mark.parametrize("scale", (1.0, 2.0**10))
def test_the_summary_is_that_of_float64(dtype, scale):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(500, generator=generator) * torch.pow(10.0, torch.randint(-12, 6, (500,), generator=generator))
    values[:7] = torch.tensor([0.0, math.inf, -math.inf, math.nan, 65504.0, 65520.0, 2.0**-25])
    assert summary(values, dtype, scale).tolist() == pytest.approx(reference(values, dtype, scale), rel=1e-5)


def test_tensors_without_floating_values_have_no_summary():
    assert summary(torch.ones(3, dtype=torch.int64), torch.float16) is None
    assert summary(torch.ones(0), torch.float16) is None


class Net(torch.nn.Module):
    """A layer that is called twice, and one with an exact output."""

    def __init__(self):
        super().__init__()
        self.shared, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        with torch.no_grad():
            for param in self.parameters():
                param.copy_(torch.arange(param.numel()).reshape(param.shape) / 8.0)

    def forward(self, x):
        return self.last(self.shared(torch.relu(self.shared(x))))


def train(path, level, every=2, steps=5, **options):
    """Train with statistics; return the rows and, of the steps that are measured, the tensors by (kind, name)."""
    seen = []
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0**-10)
    with ampcompat.session(level, stats_every=every, stats_file=str(path), verbosity=0, loss_scale=128.0, **options):
        amp.initialize(net, optimizer)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = net(torch.full((2, 4), 0.5)).float().pow(2).mean()
            loops.backward(loss, optimizer)
            names = [name for name, _ in net.named_parameters()]
            pairs = zip(names, net.parameters(), amp.master_params(optimizer))
            seen.append({name: (param.detach().clone(), master.grad.clone()) for name, param, master in pairs})
            optimizer.step()
        hooks = [module for module in net.modules() if module._forward_hooks or module._forward_pre_hooks]
    with open(str(path), newline="") as file:
        return list(csv.DictReader(file)), seen, hooks


@pytest.mark.parametrize("level", ("O0", "O1", "O2", "O5"))
def test_rows_are_those_of_float64_in_every_nth_step(level, tmp_path):
    rows, seen, hooks = train(tmp_path / "s.csv", level)
    assert sorted({int(row["step"]) for row in rows}) == [0, 2, 4] and hooks == []
    low = torch.float32 if level == "O0" else precision.low_of(level)
    assert {row["level_dtype"] for row in rows} == {str(low)[6:]} and {row["loss_scale"] for row in rows} == {"128"}
    for row in [row for row in rows if row["tensor"] in ("weight", "bias")]:
        weight, gradient = seen[int(row["step"])][f"{row['module']}.{row['tensor']}"]
        is_gradient = row["kind"] == "gradient"
        expected = reference(gradient if is_gradient else weight, low, 128.0 if is_gradient else 1.0)
        assert [float(row[name]) for name in SUMMARY] == pytest.approx(expected, rel=1e-4)
        assert int(row["size"]) == weight.numel()
    first = [(row["kind"], row["module"], row["tensor"], row["call"]) for row in rows if row["step"] == "0"]
    assert len(first) == len(set(first)) and ("activation", "shared", "output", "1") in first
    assert ("gradient", "shared", "output", "0") in first and ("activation", "", "input", "0") in first


def test_gradients_at_outputs_are_unscaled_and_counted_at_the_loss_scale(tmp_path):
    rows, seen, _ = train(tmp_path / "s.csv", "O2", steps=1)
    (row,) = [each for each in rows if (each["kind"], each["module"], each["tensor"]) == ("gradient", "last", "output")]
    (bias,) = [each for each in rows if (each["kind"], each["module"], each["tensor"]) == ("gradient", "last", "bias")]
    assert float(row["max_abs"]) * 2 == pytest.approx(float(bias["max_abs"]), rel=1e-2)  # of a batch of two equal rows


def test_two_optimizers_are_both_measured_in_a_step(tmp_path):
    nets = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    with ampcompat.session("O2", stats_every=3, stats_file=str(tmp_path / "s.csv"), verbosity=0):
        amp.initialize(nets, optimizers, num_losses=2)
        for _ in range(4):
            for number, (net, optimizer) in enumerate(zip(nets, optimizers)):
                loops.step(net(torch.ones(3, 2)).float().mean(), optimizer, loss_id=number)
    with open(str(tmp_path / "s.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(row["step"], row["kind"], row["model"]) for row in rows}
    assert found == {(s, kind, m) for s in "03" for kind in ("activation", "gradient", "weight") for m in "01"}


def test_each_rank_writes_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_statistics, "world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1, raising=False)
    file = tensor_statistics.CsvFile(str(tmp_path / "stats.csv"))
    file.write([{"step": 0, "kind": "weight"}])
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["stats.rank1.csv"]


@pytest.mark.parametrize(
    "options", ({"stats_every": 3}, {"stats_file": "f.csv"}, {"stats_every": 0, "stats_file": "f"})
)
def test_options_that_need_others_are_refused(options):
    with pytest.raises(AmpValueError, match="stats_every"), ampcompat.session("O1", **options):
        pass


SCRIPT = """
import torch
from apex import amp
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
for step in range(3):
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.ones(3, 4)).float().pow(2).mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""


def test_run_writes_the_file_of_an_unchanged_script(tmp_path, monkeypatch):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run_in_process(monkeypatch, "--stats-every", 2, "--stats-file", tmp_path / "s.csv", path)
    ampcompat.reset()
    assert {line.split(",")[0] for line in (tmp_path / "s.csv").read_text().splitlines()} == {"step", "0", "2"}
