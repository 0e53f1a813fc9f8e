"""``ampcompat checkpoint``: what a file holds, and conversions after which training goes on."""

import os
import re
import sys
import types
import zipfile

import pytest
import saved_runs
import torch
from helpers import precision
from helpers.half_kernels import trains_in
from helpers.networks import differing
from saved_runs import SAVED_AT, STEPS, Run, uninterrupted, written

from ampcompat import amp
from ampcompat.cli import main
from ampcompat.errors import AmpError
from ampcompat.tools.checkpoint_files import convert, read

pytestmark = pytest.mark.skipif(
    saved_runs.lacks_weights_only() is not None, reason=str(saved_runs.lacks_weights_only())
)


def described(path, capsys, *options):
    assert main(["checkpoint", str(path)] + [str(option) for option in options]) == 0
    return capsys.readouterr().out


def failing(path, capsys, *options):
    with pytest.raises(SystemExit) as stop:
        main(["checkpoint", str(path)] + [str(option) for option in options])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def half_and_masters(run):
    """Return what a script with FP16_Optimizer saved for a run at O2: a half model, masters in the optimizer."""
    stash = run.optimizer._amp_stash
    model = dict(run.model.state_dict())
    names = {id(param): name for name, param in run.model.named_parameters()}
    for param in stash.all_fp16_params:
        model[names[id(param)]] = param.detach().clone()
    optimizer = {
        "loss_scaler": None,
        "dynamic_loss_scale": True,
        "optimizer_state_dict": run.optimizer.state_dict(),
        "fp32_from_fp16": [[master.detach().clone() for master in stash.all_fp32_from_fp16_params]],
    }
    return {"epoch": 3, "model": model, "optimizer": optimizer}


@pytest.mark.parametrize("level, words", [("O2", "O1 or O2"), ("O3", "O1 or O2")])
def test_a_file_of_amp_is_described(tmp_path, capsys, level, words):
    path = tmp_path / "run.pt"
    path.write_bytes(uninterrupted(level, "Adam")[0])
    out = described(path, capsys)
    assert "amp.initialize (Apex from 2019 on, or ampcompat)" in out and words in out
    high = str(precision.HIGH).replace("torch.", "")
    assert f"model                  : model: 9 tensors (8 {high}, 1 int64)" in out
    assert "optimizer: 6 params in 1 group, state of 6" in out and "amp: loss scale " in out


@pytest.mark.skipif(precision.IS_STAND_IN, reason="a model in float32, used here in place of half, is not a half model")
def test_a_half_model_with_masters_resumes_at_o2_to_the_bit(tmp_path, capsys):
    run = Run("O2", "Adam").initialize()
    run.train(0, SAVED_AT)
    path, converted = tmp_path / "fp16.pt", tmp_path / "o2.pt"
    path.write_bytes(written(half_and_masters(run)))
    scalers = amp.state_dict()
    losses = run.train(SAVED_AT, STEPS)
    out = described(path, capsys, "--to", "O2", "-o", converted)
    assert "as O2: float16 weights, and float32 master weights" in out and "apex.fp16_utils" in out
    checkpoint = read(str(converted))
    assert checkpoint["epoch"] == 3 and "loss_scale" not in str(checkpoint)  # the file had no scale
    resumed = Run("O2", "Adam", seed=7).initialize()
    resumed.model.load_state_dict(checkpoint["model"])
    resumed.optimizer.load_state_dict(checkpoint["optimizer"])
    amp.load_state_dict(scalers)
    assert resumed.train(SAVED_AT, STEPS) == losses
    assert differing(resumed.portrait(), run.portrait()) == []


def with_grad_scaler(model, optimizer, scaler, first, last):
    losses = []
    for index in range(first, last):
        generator = torch.Generator().manual_seed(100 + index)
        inputs, target = torch.randn(5, 6, generator=generator), torch.randint(0, 3, (5,), generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(inputs).float(), target) * (2.0**12 if index == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


@pytest.mark.skipif(
    not hasattr(getattr(torch, "amp", None), "GradScaler") or not trains_in(torch.float16),
    reason="this torch has no GradScaler for a CPU",
)
def test_o1_goes_on_under_torch_amp_and_back(tmp_path, capsys):
    path, torchs, back = (tmp_path / name for name in ("o1.pt", "torch.pt", "back.pt"))
    path.write_bytes(uninterrupted("O1", "Adam")[0])
    described(path, capsys, "--to", "torch", "-o", torchs)
    checkpoint = read(str(torchs))
    run = Run("O1", "Adam", seed=7)
    scaler = torch.amp.GradScaler("cpu")
    run.model.load_state_dict(checkpoint["model"])
    run.optimizer.load_state_dict(checkpoint["optimizer"])
    scaler.load_state_dict(checkpoint["scaler"])
    losses = with_grad_scaler(run.model, run.optimizer, scaler, SAVED_AT, STEPS)
    assert losses == pytest.approx(uninterrupted("O1", "Adam")[2][SAVED_AT:], rel=5e-3)
    out = described(torchs, capsys, "--to", "apex", "-o", back)
    assert "torch.amp with a GradScaler" in out
    assert read(str(back))["amp"] == read(str(path))["amp"]


def test_master_params_beside_a_float32_model_of_half_values(tmp_path):
    torch.manual_seed(0)
    masters = [torch.randn(3, 4), torch.randn(3)]
    model = {"module.weight": masters[0].half().float(), "module.bias": masters[1].half().float()}
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1).state_dict()
    result = convert({"model": model, "optimizer": optimizer, "master params": masters}, "O1")
    assert torch.equal(result["model"]["module.weight"], masters[0]) and "master params" not in result
    with pytest.raises(AmpError, match="1 of 2 master weights do not round to any weight"):
        convert({"model": model, "optimizer": optimizer, "master params": [masters[0], torch.ones(3)]}, "O1")


def test_state_in_half_and_lists_of_optimizers_are_widened():
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
    param.grad = torch.ones(2)
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["momentum_buffer"] = state["state"][0]["momentum_buffer"].half()
    result = convert({"net": {"w": torch.ones(2).half()}, "optimizers": [state, state]}, "torch")
    assert result["net"]["w"].dtype is torch.float32
    assert [each["state"][0]["momentum_buffer"].dtype for each in result["optimizers"]] == [torch.float32] * 2
    assert state["state"][0]["momentum_buffer"].dtype is torch.float16


def test_each_loss_scaler_gets_a_grad_scaler():
    scalers = {"loss_scaler0": {"loss_scale": 8.0, "unskipped": 3}, "loss_scaler1": {"loss_scale": 2.0, "unskipped": 1}}
    result = convert({"model": {"w": torch.ones(2)}, "amp": scalers}, "torch")
    assert [result[key]["scale"] for key in ("scaler", "scaler1")] == [8.0, 2.0] and "amp" not in result
    assert convert(result, "apex")["amp"] == scalers


def test_a_state_dict_by_itself(tmp_path, capsys):
    path = tmp_path / "weights.pt"
    path.write_bytes(written({"w": torch.ones(2).half()}))
    assert "O3, or a model cast by hand" in described(path, capsys, "--to", "O1", "-o", tmp_path / "o.pt")
    assert read(str(tmp_path / "o.pt"))["w"].dtype is torch.float32


def test_numbers_that_are_not_finite_are_counted(tmp_path, capsys):
    model = {"weight": torch.tensor([[1.0, float("nan")], [float("inf"), 2.0]]), "steps": torch.tensor(3)}
    moments = {"step": 2, "exp_avg": torch.tensor([float("nan")] * 3, dtype=torch.bfloat16)}
    optimizer = {"state": {0: moments}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    masters = [torch.tensor([float("-inf")]), torch.ones(2)]
    fp16_optimizer = {"optimizer_state_dict": optimizer, "fp32_from_fp16": [masters], "loss_scaler": None}
    whole = {"broken": model, "sound": {"weight": torch.ones(2)}, "optimizer": optimizer, "masters": masters}
    torch.save(dict(whole, fp16=fp16_optimizer), str(tmp_path / "nan.pt"))
    lines = dict(line.split(" : ", 1) for line in described(tmp_path / "nan.pt", capsys).splitlines())
    found = {name.strip(): re.findall(r"; (\d+) are nan or inf$", text) for name, text in lines.items()}
    counts = {"broken": ["2"], "sound": [], "optimizer": ["3"], "masters": ["1"], "fp16": ["4"]}
    assert {name: found[name] for name in counts} == counts


def test_a_damaged_file_gets_one_sentence(tmp_path, capsys):
    whole = uninterrupted("O1", "Adam")[0]
    for number, data in enumerate((b"", b"not a checkpoint", whole[: len(whole) // 2], whole[:100])):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(data)
        assert "is damaged" in failing(path, capsys)
    assert "cannot read" in failing(tmp_path / "nowhere.pt", capsys)


def test_a_file_of_another_kind_gets_no_advice_to_load_what_could_run_code(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text("import torch\n")
    error = failing(path, capsys)
    assert error.endswith("train.py is damaged, or was not written by torch.save.\n") and "weights_only" not in error


@pytest.mark.parametrize("content, words", [({}, "dict, empty"), (torch.zeros(3), "Tensor")])
def test_a_file_without_parts_is_described(tmp_path, capsys, content, words):
    path = tmp_path / "file.pt"
    torch.save(content, str(path))
    assert f"the file               : {words}\n" in described(path, capsys)


def test_a_file_that_cannot_be_written_gets_one_sentence(tmp_path, capsys):
    path = tmp_path / "model.pt"
    torch.save(torch.nn.Linear(2, 2).state_dict(), str(path))
    error = failing(path, capsys, "--to", "torch", "-o", "/dev/full")
    assert "cannot write /dev/full: " in error and error.endswith(".\n") and not error.endswith("..\n")


def test_objects_are_not_loaded_and_their_class_is_named(tmp_path, capsys):
    path = tmp_path / "model.pt"
    torch.save({"model": torch.nn.Linear(2, 2)}, str(path))
    assert "has an object of torch.nn.modules.linear.Linear" in failing(path, capsys)


@pytest.mark.parametrize(
    "content, message",
    [
        ({"epoch": 3}, "nothing to convert"),
        (
            {
                "model": {"w": torch.ones(1)},
                "o": {"optimizer_state_dict": {"state": {}, "param_groups": []}, "fp32_groups_flat": []},
            },
            "fp32_groups_flat",
        ),
    ],
)
def test_what_cannot_be_converted_is_said_in_one_line(tmp_path, capsys, content, message):
    path = tmp_path / "file.pt"
    path.write_bytes(written(content))
    assert message in failing(path, capsys, "--to", "O1", "-o", tmp_path / "o.pt")
    assert not (tmp_path / "o.pt").exists()


def test_wrong_options(tmp_path, capsys):
    path = tmp_path / "file.pt"
    path.write_bytes(written({"w": torch.ones(1)}))
    assert "--to and -o belong together" in failing(path, capsys, "--to", "O1")
    assert "the command reads this file" in failing(path, capsys, "--to", "O1", "-o", path)
    assert "cannot write" in failing(path, capsys, "--to", "O1", "-o", tmp_path / "no" / "o.pt")


@pytest.mark.skipif(not hasattr(torch.serialization, "safe_globals"), reason="this torch cannot read Apex's scalers")
def test_the_scaler_object_that_apex_saved_is_read_without_apex(tmp_path, capsys, monkeypatch):
    path = tmp_path / "apex.pt"
    scaler = type("DynamicLossScaler", (), {"__module__": "apex.fp16_utils.loss_scaler"})()
    vars(scaler).update(cur_scale=256.0, cur_iter=9, last_overflow_iter=4)
    monkeypatch.setitem(
        sys.modules, "apex.fp16_utils.loss_scaler", types.SimpleNamespace(DynamicLossScaler=type(scaler))
    )
    optimizer = {"loss_scaler": scaler, "optimizer_state_dict": {"state": {}, "param_groups": []}, "fp32_from_fp16": []}
    path.write_bytes(written({"model": {"w": torch.ones(1)}, "optimizer": optimizer}))
    described(path, capsys, "--to", "apex", "-o", tmp_path / "o.pt")
    assert read(str(tmp_path / "o.pt"))["amp"] == {"loss_scaler0": {"loss_scale": 256.0, "unskipped": 4}}


@pytest.mark.parametrize(
    "content",
    [
        {"amp": {"loss_scaler0": {"loss_scale": 1.0}}},
        {"amp": {"loss_scaler0": [1]}, "model": {"w": torch.ones(1)}},
        {"optimizer": {"state": [1], "param_groups": {"a": 1}}, "model": {"w": torch.ones(1)}},
    ],
    ids=["no count of steps", "a list", "a dict"],
)
def test_known_names_with_other_content_are_one_line(tmp_path, capsys, content):
    path = tmp_path / "file.pt"
    torch.save(content, str(path))
    assert "has entries of an unknown structure" in failing(path, capsys)


def test_an_expanded_tensor_is_counted_without_its_memory(tmp_path, capsys):
    path = tmp_path / "file.pt"
    torch.save({"w": torch.tensor([float("nan")]).expand(10**15)}, str(path))
    assert f"{10**15} numbers; {10**15} are nan or inf" in described(path, capsys)


def test_a_compressed_file_is_not_unpacked(tmp_path, capsys):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(str(path), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(64 << 20))
    assert "it unpacks to 67108864 bytes" in failing(path, capsys)


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_a_pipe_is_not_read(tmp_path, capsys):
    os.mkfifo(str(tmp_path / "pipe"))
    assert "it is a pipe or a device, not a file" in failing(tmp_path / "pipe", capsys)
