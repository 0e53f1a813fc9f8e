"""``run --op-stats``: calls by function and dtype against what a hand-written loop computes, and the reason of each."""

import json
import os

import pytest
import torch
from helpers import loops
from helpers.precision import IS_STAND_IN, low_of
from helpers.processes import run_in_process
from torch.nn import functional as F

import ampcompat
from ampcompat import amp
from ampcompat.engine.casting import emulated_half_arithmetic, wrappers
from ampcompat.launch.forced_levels import forced_level
from ampcompat.observers.step_statistics.op_stats import WrittenNames, readable
from ampcompat.support.child_environment import ChildEnvironment
from ampcompat.support.torch_compat import features, thread_context

if not features.is_version_within(oldest="2.1"):
    pytest.skip("calls are counted with torch 2.1 or newer", allow_module_level=True)
if IS_STAND_IN:
    pytest.skip("float32, which stands in for half here, is what other calls run in too", allow_module_level=True)

STEPS = 3


class Net(torch.nn.Module):
    """Functions of every kind of rule: half, float32, promoted, none; and regions without casts."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv1d(2, 4, 1), torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 4)

    def forward(self, x):
        x = self.norm(self.conv(x)).mean(2)
        x = torch.cat([x, torch.tanh(x)], 0) @ torch.ones(4, 4, dtype=x.dtype)
        with amp.disable_casts():
            x = torch.softmax(x.float(), 1)
        return self.head(x)


def train(level, tmp_path, net=None, **options):
    """Train with counted calls; return what the file has."""
    path = tmp_path / "calls.json"
    with ampcompat.session(level, op_stats_file=str(path), verbosity=0, **options):
        net = net or Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        amp.initialize(net, optimizer, keep_fp32=["head"])
        for _ in range(STEPS):
            loss = F.mse_loss(net(torch.ones(4, 2, 3)), torch.zeros(8, 4))
            loops.step(loss, optimizer)
    return json.loads(path.read_text())


def table(found):
    """Return ``{function: (dtype, calls, reason)}`` of what a file has."""
    rows = {each["function"]: (each["dtype"], each["calls"], each["reason"]) for each in found["calls"]}
    assert len(rows) == len(found["calls"])
    return rows


CASTING = {
    "F.conv1d": ("half", "op table: half, as in Apex"),
    "F.batch_norm": ("mixed", "not in the op table: the dtype of its inputs"),
    "Tensor.mean": ("half", "not in the op table: the dtype of its inputs"),
    "torch.tanh": ("half", "not in the op table: the dtype of its inputs"),
    "torch.cat": ("half", "op table: the widest dtype of the inputs, as in Apex"),
    "a @ b": ("half", "op table: half, as in Apex"),
    "torch.softmax": ("float32", "casts are off here: amp.disable_casts, or autocast that is disabled"),
    "F.linear": ("float32", "keep_fp32 keeps layer head in float32"),
    "F.mse_loss": ("float32", "op table: float32, as in Apex"),
}
OF_WEIGHTS = {
    name: ("half", "{level}: the model's weights and inputs are half")
    for name in ("F.conv1d", "Tensor.mean", "torch.tanh", "torch.cat", "a @ b")
}
OF_WEIGHTS.update(
    {
        "F.batch_norm": ("mixed", "keep_batchnorm_fp32: a norm with float32 weights at {level}"),
        "torch.softmax": ("float32", "its inputs are float32, and {level} casts no functions"),
        "F.linear": ("float32", "keep_fp32 keeps layer head in float32"),
        "F.mse_loss": ("float32", "outside of the models, where {level} casts nothing: the dtype of its inputs"),
    }
)
AT_O0 = {name: ("float32", "O0 computes in float32") for name in OF_WEIGHTS}
AT_O0["F.mse_loss"] = ("float32", "outside of the models, where O0 casts nothing: the dtype of its inputs")
EXPECTED = [
    ("O1", "native", CASTING),
    ("O4", "patched", CASTING),
    ("O2", "native", OF_WEIGHTS),
    ("O3", "native", dict(OF_WEIGHTS, **{"F.batch_norm": OF_WEIGHTS["F.conv1d"]})),
    ("O5", "native", OF_WEIGHTS),
    ("O0", "native", AT_O0),
]


@pytest.mark.parametrize("level, backend, expected", EXPECTED, ids=[each[0] for each in EXPECTED])
def test_every_call_is_counted_once_with_its_dtype_and_reason(level, backend, expected, tmp_path):
    found = train(level, tmp_path, backend=backend, diagnose=True)  # whose own calls do not count
    low = str(low_of(level)).replace("torch.", "")
    wanted = {
        name: (low if dtype == "half" else dtype, STEPS, why.format(level=level))
        for name, (dtype, why) in expected.items()
    }
    assert table(found) == wanted
    assert (found["level"], found["steps"]) == (level, STEPS)
    assert found["backend"] == (backend if level in ("O1", "O4") else None)


@pytest.mark.parametrize("setting", ("on", "off"))
@pytest.mark.parametrize("level", ("O1", "O2"))
def test_emulated_products_count_as_half_whatever_computes_them(setting, level, tmp_path, monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, setting)
    found = train(level, tmp_path)
    (conv,) = [each for each in found["calls"] if each["function"] == "F.conv1d"]
    assert (conv["dtype"], conv["emulated"]) == ("float16", setting == "on")


class Attending(torch.nn.Module):
    """Attention and a checkpoint, in which functions call others, and are called again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = torch.nn.MultiheadAttention(4, 2), torch.nn.Linear(4, 4)

    def forward(self, x):
        x = x.transpose(1, 2).reshape(3, 4, 2).repeat(1, 1, 2)
        x = self.attention(x, x, x)[0].mean(0).repeat(2, 1)
        return torch.utils.checkpoint.checkpoint(lambda y: self.head(torch.tanh(y)), x, use_reentrant=False)


@pytest.mark.parametrize("level", ("O1", "O2"))
def test_what_checkpoints_recompute_is_no_call_and_calls_within_attention_are(level, tmp_path):
    found = train(level, tmp_path, Attending())["calls"]
    calls = {each["function"]: each["calls"] for each in found if each["dtype"] == "float16"}
    assert calls["torch.tanh"] == STEPS and calls["F.linear"] == 2 * STEPS  # the projections of attention
    assert "torch.bmm" in calls and "F.multi_head_attention_forward" not in calls


def test_functions_that_users_registered_and_removed_from_the_lists(tmp_path):
    amp.register_float_function(torch, "tanh")
    amp.lists.functional_overrides.FP32_FUNCS.remove("mse_loss")
    calls = table(train("O1", tmp_path))
    assert calls["torch.tanh"] == ("float32", STEPS, "op table: float32; registered by the user")
    assert calls["F.mse_loss"] == ("float32", STEPS, "op table: never cast; removed from amp.lists")


def test_nothing_of_it_stays_and_blocks_of_other_modes_may_end_meanwhile(tmp_path):
    computed = emulated_half_arithmetic.EmulatedCall.computed
    with torch.device("cpu"):
        session = ampcompat.session("O1", op_stats_file=str(tmp_path / "f.json"), verbosity=0)
        session.__enter__()
        net = Net()
        amp.initialize(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert len(thread_context.function_modes()) == 1
    session.__exit__(None, None, None)
    assert thread_context.function_modes() == [] and wrappers.around == []
    assert emulated_half_arithmetic.EmulatedCall.computed is computed
    assert not torch.nn.modules.module._global_forward_pre_hooks


SCRIPT = """
import torch
from apex import amp
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, verbosity=0)
for step in range(2):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).float().pow(2).mean().backward()
    optimizer.step()
"""


def test_run_prints_the_table_when_the_script_ends(tmp_path, monkeypatch, capsys):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    uncompiled = ChildEnvironment(is_uncompiled=True).variables()
    for name in uncompiled:
        monkeypatch.setenv(name, "0")  # which the end of the test undoes
    run_in_process(monkeypatch, "--op-stats", path)
    assert {name: os.environ[name] for name in uncompiled} == dict.fromkeys(uncompiled, "1")
    ampcompat.reset()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ampcompat: calls of torch's functions in 2 optimizer steps at O1, cast backend ")
    assert lines[2].split() == ["function", "float16", "float32", "why"]
    assert any(line.split()[:2] == ["F.linear", "2"] for line in lines)
    assert lines[-1].startswith("Not counted: casts, views")


def test_names_are_those_that_users_write():
    functions = [torch.matmul, F.conv2d, F.linear, torch.Tensor.mul, torch.Tensor.add_, torch.Tensor.__rsub__, F.relu]
    functions += [torch.Tensor.neg, torch.Tensor.abs]
    written = ["torch.matmul", "F.conv2d", "F.linear", "a * b", "a += b", "a - b", "F.relu", "-a", "Tensor.abs"]
    assert [WrittenNames().name_of(each) for each in functions] == written
    assert readable("torch._VF.lstm") == "torch.lstm" and readable("torch.Tensor.exp_") == "Tensor.exp_"


def test_a_model_that_amp_does_not_know_is_outside_and_a_second_initialize_follows(tmp_path):
    path = tmp_path / "calls.json"
    with ampcompat.session("O2", op_stats_file=str(path), verbosity=0):
        amp.initialize(torch.nn.Linear(2, 2))
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
        model = amp.initialize(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2))
    lines = [each for each in json.loads(path.read_text())["calls"] if each["function"] == "F.linear"]
    assert {(each["dtype"], each["calls"], each["reason"].partition(":")[0]) for each in lines} == {
        ("float32", 1, "outside of the models, where O2 casts nothing"),
        ("float16", 1, "O2"),
    }


def test_nothing_is_counted_after_an_initialize_that_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AMPCOMPAT_OP_STATS", "1")
    with pytest.raises(RuntimeError):
        amp.initialize(Net().half(), opt_level="O1")
    assert wrappers.around == [] and thread_context.function_modes() == [] and capsys.readouterr().out == ""


@pytest.mark.parametrize("level", ("O1", "O2"))
def test_a_script_without_amp_is_counted_at_a_forced_level(level, tmp_path, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_OP_STATS_FILE", str(tmp_path / "calls.json"))
    with forced_level.forced(level):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).float().pow(2).mean().backward()
            optimizer.step()
    calls = table(json.loads((tmp_path / "calls.json").read_text()))
    assert calls["F.linear"][:2] == ("float16", 2 * STEPS) and calls["F.relu"][:2] == ("float16", STEPS)
