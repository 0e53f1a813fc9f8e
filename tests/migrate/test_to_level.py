"""``migrate --to-level``: the written script trains as the original does under ``run --opt-level``, bit for bit."""

import pathlib
import re
import warnings

import pytest
import torch
from helpers.processes import ROOT

import ampcompat
from ampcompat.cli import main
from ampcompat.errors import AmpError
from ampcompat.launch.forced_levels.forced_level import forced, is_supported

pytest.importorskip("libcst", reason="the extra `migrate` has LibCST")
if not is_supported() or not hasattr(torch.amp, "GradScaler"):
    pytest.skip("forced levels of scripts with a GradScaler for CPUs need torch 2.3", allow_module_level=True)

from ampcompat.static_analysis.migrate import write_level  # noqa: E402

HEAD = """
import contextlib
import torch
from torch import nn
torch.manual_seed(0)

def mlp(first=4, last=1):
    return nn.Sequential(nn.Linear(first, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, last))

data = torch.randn(8, 4, 4)
"""
PLAIN = """
model = mlp()
model.load_state_dict(mlp().state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
average = torch.optim.swa_utils.AveragedModel(model)
targets = data @ torch.ones(4, 1)
for inputs, target in zip(data, targets):
    loss = nn.functional.mse_loss(model(inputs), target)
    optimizer.zero_grad()
    loss.backward()  # of one batch
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    scheduler.step()
    average.update_parameters(model)
result = [model, average]
"""
ACCUMULATING = """
def train(net, optim, batches):
    for index, inputs in enumerate(batches):
        (net(inputs).pow(2).mean() / 2).backward()
        if (index + 1) % 2 == 0:
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optim.step(); optim.zero_grad()

def main():
    model = mlp()
    decayed = [param for name, param in model.named_parameters() if "weight" in name]
    groups = [{"params": decayed, "weight_decay": 0.1}]
    groups.append({"params": [param for name, param in model.named_parameters() if "weight" not in name]})
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    train(model, optimizer, data)
    return [model]

if __name__ == "__main__":
    result = main()
"""
GAN = """
netG, netD = mlp(4, 4), mlp()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.01)
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.01)
for inputs in data:
    fake = netG(inputs.flip(0))
    netD.zero_grad()
    for loss in (netD(inputs).mean() / 256, -netD(fake.detach()).mean() / 256):
        loss.backward()
    optimizerD.step()
    netG.zero_grad()
    (netD(fake).mean() / 256).backward()
    optimizerG.step()
result = [netG, netD]
"""
TWO_OF_ONE = """
class Trainer:
    def __init__(self):
        self.model = mlp()
        self.ctx = contextlib.nullcontext() if self.model is None else torch.autocast("cpu")
        self.body_optimizer = torch.optim.SGD(self.model[0].parameters(), lr=0.1)
        self.head_optimizer = torch.optim.Adam(self.model[3].parameters(), lr=0.1)

    def fit(self):
        for inputs in data:
            with self.ctx:
                loss = self.model(inputs).pow(2).mean()
            self.body_optimizer.zero_grad()
            self.head_optimizer.zero_grad()
            loss.backward()
            self.body_optimizer.step()
            self.head_optimizer.step()

trainer = Trainer()
trainer.fit()
result = [trainer.model]
"""
CLOSURE = """
model = mlp()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
for inputs in data[:2]:
    def closure():
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        return loss
    optimizer.step(closure)
result = [model]
"""
SCALER = """
from torch.amp import GradScaler, autocast
ctx = autocast("cpu", dtype=torch.bfloat16)
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scaler = GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
for inputs in data:
    optimizer.zero_grad()
    with torch.autocast("cpu"), torch.enable_grad():
        outputs = model(inputs)
    with ctx:
        loss = outputs.pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
result = [model]
"""
OPTIONAL_SCALER = """
from torch.amp import GradScaler, autocast
use_amp = True
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scaler = GradScaler("cpu") if use_amp else None

def step(model, inputs, optimizer, scaler):
    with autocast("cpu", enabled=use_amp):
        loss = model(inputs).pow(2).mean()
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()

for inputs in data:
    step(model, inputs, optimizer, scaler)
result = [model]
"""
HALF = """
model = mlp().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for inputs in data:
    loss = model(inputs).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
result = [model]
"""
COMPILED = """
model = mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
compiled = torch.compile(model, backend="eager")
for inputs in data[:3]:
    optimizer.zero_grad()
    compiled(inputs).pow(2).mean().backward()
    optimizer.step()
result = [model]
"""
WRAPPED = """
model = mlp()
parallel = nn.DataParallel(model)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5)
for inputs in data:
    optimizer.zero_grad()
    criterion(parallel(inputs), torch.ones(4, 1)).backward()
    optimizer.step()
result = [model]
"""
BUILT = """
def build(several, adam):
    model = mlp()
    if several:
        model = nn.DataParallel(model)
    if adam:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return model, optimizer

net, optim = build(True, False)
for inputs in data:
    optim.zero_grad()
    loss = net(inputs).pow(2).mean()
    loss.backward()
    optim.step()
result = [net.module]
"""
SCRIPTS = {
    "plain": PLAIN, "accumulating": ACCUMULATING, "gan": GAN, "two_of_one": TWO_OF_ONE, "closure": CLOSURE,
    "scaler": SCALER, "optional_scaler": OPTIONAL_SCALER, "compiled": COMPILED, "half": HALF,
    "wrapped": WRAPPED, "built": BUILT,
}  # fmt: skip


def trained(source):
    """Return the weights that a script ends with, by name, in float32."""
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GradScaler's of a CPU
        exec(compile(source, "train.py", "exec"), names)
    return [(key, value.clone()) for each in names["result"] for key, value in each.state_dict().items()]


@pytest.mark.usefixtures("compiler_forgets")
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_the_written_script_trains_as_at_the_forced_level_bit_for_bit(level, name, monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_VERBOSITY", "0")
    source = HEAD + SCRIPTS[name]
    new = write_level(source, level).source
    assert "GradScaler(" not in new or name == "optional_scaler"
    with forced(level):
        expected = trained(source)
    found = trained(new)
    assert ampcompat.amp.state_dict() is not None
    ampcompat.reset()
    for (key, value), (other, right) in zip(found, expected):
        assert key == other and value.dtype is right.dtype and torch.equal(value.isnan(), right.isnan()), key
        assert torch.equal(value.nan_to_num(), right.nan_to_num()), key


@pytest.mark.parametrize(
    "change, message",
    [
        (("loss.backward()  # of one batch", "train_step(loss)"), "train.py has no loss.backward()"),
        (("loss.backward()  # of one batch", "loss.backward(torch.ones(()))"), r"train.py:2\d: this backward pass"),
        (("loss.backward()  # of one batch", "torch.autograd.backward([loss])"), r"train.py:2\d: this backward pass"),
        (("torch.optim.SGD(model.parameters()", "torch.optim.SGD(mlp().parameters()"), r"train.py:1\d: no model that"),
        (("model(inputs)", "forward_pass(inputs)"), r"train.py:1\d: no model that this script calls is seen"),
        (("optimizer = ", "model = nn.DataParallel(model)\nprint(model)\noptimizer = "), r"1\d: the model is wrapped"),
        (("optimizer = ", "ids = []\nmodel = nn.DataParallel(model, ids)\nids = [0]\noptimizer = "), "is wrapped"),
        (("optimizer = ", "if data:\n    other = nn.DataParallel(model)\noptimizer = "), "the model is wrapped"),
        (("optimizer = ", "if data:\n    model = nn.DataParallel(model)\n    print(1)\noptimizer = "), "is wrapped"),
        (("model = mlp()", "model = nn.DataParallel(mlp()).cuda()"), r"train.py:1\d: the model is wrapped"),
        (("loss.backward()  # of one batch", "(lambda: loss.backward())()"), r"train.py:2\d: this backward pass"),
        (("optimizer = ", "class Own:\n    optimizer = torch.optim.Adam(model.parameters())\noptimizer = "),
         r"train.py:1\d: this optimizer is created neither"),
        (("torch.manual_seed(0)\n", "x = f(); y = g(); loss.backward(x)\n"), "train.py:5: this backward pass"),
        (("optimizer.step()", "take_step()"), r"train.py:2\d: no step of an optimizer is seen"),
        (("result =", "model.half()\nresult ="), r"train.py:\d+: model: a model is cast to half.*remove the cast"),
        (("import torch", "import torch\nfrom transformers import Trainer\nTrainer(1)"),
         "leaves the backward pass to transformers.Trainer.*run --opt-level O5 train.py"),
        (("import torch", "import torch\nfrom apex import amp"), "uses Apex or ampcompat already"),
        (("import torch", "import torch\nimport ampcompat"), "uses Apex or ampcompat already"),
        (("result =", "def other():\n    other_optimizer = torch.optim.SGD(model.parameters())\nresult ="),
         "a different function than that of line 1"),
        (("torch.manual_seed(0)", "def f(:"), "is not Python 3"),
    ],
)  # fmt: skip
def test_a_script_that_cannot_be_rewritten_with_certainty_gets_one_sentence(change, message):
    with pytest.raises(AmpError, match=message) as error:
        write_level((HEAD + PLAIN).replace(*change), "O5", "train.py")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change, message",
    [
        (("scaler.update()", "scaler.update(1.0)"), "GradScaler's update in this place"),
        (("scaler.update()", "print(scaler.get_scale())"), "GradScaler's get_scale in this place"),
        (
            ("scaler.scale(loss).backward()", "scaled = scaler.scale(loss)\n    scaled.backward()"),
            "GradScaler's scale in",
        ),
        (('GradScaler("cpu", init', 'GradScaler("cpu", enabled=fast, init'), "options of this GradScaler"),
        (('torch.autocast("cpu")', 'torch.autocast("cpu", enabled=False)'), "computes in float32"),
        (('torch.autocast("cpu")', 'torch.autocast("cpu", enabled=fast)'), "computes in float32"),
        (("with ctx:", "with choose(ctx):"), "the autocast region ctx is passed on"),
        (("with ctx:", "with choose(autocast('cpu')):"), "an autocast region that is not entered"),
    ],
)
def test_what_of_torch_amp_cannot_be_removed_is_refused_with_its_line(change, message):
    with pytest.raises(AmpError, match=rf"train.py:\d+: .*{message}"):
        write_level((HEAD + SCALER).replace(*change), "O5", "train.py")


def test_names_of_other_functions_are_other_variables():
    elsewhere = "def evaluate(model):\n    return model(data[0])\n\n"
    source = HEAD + elsewhere + PLAIN.replace("model(inputs)", "forward_pass(inputs)")
    with pytest.raises(AmpError, match=r"train.py:\d+: no model that this script calls is seen"):
        write_level(source, "O5", "train.py")
    passed_on = source.replace("result =", "evaluate(model)\nresult =")
    assert "amp.initialize(model, optimizer, " in write_level(passed_on, "O5").source


def test_a_conditional_wrapper_before_the_optimizer_moves_below_amp_initialize():
    source = HEAD + BUILT.replace("nn.DataParallel(model)", "nn.parallel.DistributedDataParallel(model)  # all ranks")
    result = write_level(source, "O2")
    lines = result.source.splitlines()
    at = lines.index('    amp.initialize(model, optimizer, opt_level="O2")')
    assert lines[at - 1].startswith("        optimizer = ") and lines[at + 1] == "    if several:"
    assert (
        lines[at + 2].endswith("DistributedDataParallel(model)  # all ranks")
        and lines[at + 3] == "    return model, optimizer"
    )
    assert "moved: the model is wrapped after amp.initialize" in str(result.notes)


def test_a_model_that_another_one_calls_is_refused_because_a_forced_level_prepares_the_outer_one():
    outer = """
class WithLoss(nn.Module):
    def forward(self, inputs):
        return model(inputs)

whole = WithLoss()
"""
    source = (HEAD + PLAIN).replace("model(inputs)", "whole(inputs)").replace("optimizer =", outer + "optimizer =")
    with pytest.raises(AmpError, match=r"train.py:\d+: no model that this script calls is seen"):
        write_level(source, "O5", "train.py")


def test_the_scalers_state_becomes_that_of_amp():
    saved = "torch.save({'é': 1, 'scaler': scaler.state_dict()}, 'f')\nscaler.load_state_dict(torch.load('f'))\n"
    new = write_level(HEAD + SCALER + saved, "O1")
    assert (
        "{'é': 1, 'scaler': amp.state_dict()}" in new.source and "\namp.load_state_dict(torch.load('f'))" in new.source
    )
    assert not any("loss scale" in note for _, note in new.notes)


def test_imports_comments_and_other_names_of_amp(tmp_path, capsys):
    source = '"""Doc."""\nfrom __future__ import annotations\n\nimport torch\n' + HEAD + PLAIN
    source = source.replace("result =", "amp = 1\ntorch.save(optimizer.state_dict(), 'f')\nresult =")
    path, new = tmp_path / "train.py", tmp_path / "new.py"
    path.write_text(source.replace("\n", "\r\n"), newline="")
    assert main(["migrate", "--to-level", "O2", str(path), "-o", str(new)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"wrote {new}; compare: ampcompat ab --against {new} {path}\n"
    assert "note: checkpoints have no loss scale: save and load amp.state_dict()" in printed.err
    text = new.read_bytes().decode()
    assert "from torch import nn\r\nfrom ampcompat import amp as ampcompat_amp\r\n" in text and "\n\n\n\n" not in text
    assert 'ampcompat_amp.initialize(model, optimizer, opt_level="O2")\r\nfor inputs' in text
    assert "        scaled_loss.backward()  # of one batch\r\n" in text


def test_a_diff_names_the_level(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(HEAD + PLAIN)
    assert main(["migrate", "--to-level", "O5", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"+++ {path} (O5)\n" in out and '+amp.initialize(model, optimizer, opt_level="O5")\n' in out
    assert path.read_text() == HEAD + PLAIN


def test_the_page_has_what_is_written_into_its_script():
    page = pathlib.Path(ROOT, "docs", "scripts_without_apex.md").read_text(encoding="utf-8")
    source, written = (
        re.search(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE) for kind in ("py", "python")
    )
    assert write_level(source.group(1), "O5").source == written.group(1)


def test_a_script_with_branches_groups_and_a_wrapper_gets_initialize_after_its_checkpoint_and_before_the_wrapper():
    source = """import torch
def main(args):
    model = make(args)
    groups = [{"params": each} for each in split(model)]
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=1.0)
    elif args.optimizer == "adam":
        optimizer = torch.optim.Adam(groups)
    else:
        raise ValueError(args.optimizer)
    if args.resume:
        optimizer.load_state_dict(torch.load(args.resume))
    bare = model
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model)
        bare = model.module
    for batch in batches:
        train_step(model, optimizer, batch)

def train_step(model, optimizer, batch):
    model(batch).backward(retain_graph=True)
    optimizer.step()
"""
    lines = write_level(source, "O2").source.splitlines()
    at = lines.index('    amp.initialize(model, optimizer, opt_level="O2")')
    assert lines[at - 1 : at + 2 : 2] == ["    bare = model", "    if args.distributed:"]
    assert "        scaled_loss.backward(retain_graph=True)" in lines
