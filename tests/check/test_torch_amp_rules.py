"""``check`` of scripts with torch.amp or half weights: each planted fault with its line, and a healthy twin."""

import pytest
from checked import check, rules

HEAD = """
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

model, data = nn.Linear(4, 1), [torch.ones(2, 4)]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
SCALER = 'scaler = torch.amp.GradScaler("cuda")\n'
FLOAT16 = 'with torch.autocast("cuda", dtype=torch.float16):\n'
BFLOAT16 = 'with torch.autocast("cuda", dtype=torch.bfloat16):\n'
SCALED = "scaler.scale(loss).backward()\n"
END = "scaler.step(optimizer)\nscaler.update()\n"
LOSS = "    loss = model(data[0]).sum()\n"
PLAIN = "loss = model(data[0]).sum()\nloss.backward()\noptimizer.step()\n"
LOADED = "from transformers import AutoModel\n\n{}model = AutoModel.from_pretrained('name', {})\n{}\n" + PLAIN
ADAM = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)\n"

#: name -> (the rule, the script with the fault, its line after the head, the script without it)
CASES = {
    "explicit float16": (
        "float16-without-scaler",
        FLOAT16 + LOSS + "loss.backward()\noptimizer.step()\n",
        1,
        SCALER + FLOAT16 + LOSS + SCALED + END,
    ),
    "float16 by default": (
        "float16-without-scaler",
        "with torch.cuda.amp.autocast():\n" + LOSS + "(loss / 2).sum()\nloss.backward()\noptimizer.step()\n",
        1,
        'with torch.autocast("cpu"):\n' + LOSS + "loss.backward()\noptimizer.step()\n",
    ),
    "float16 in a variable": (
        "float16-without-scaler",
        'ctx = torch.autocast("cuda", torch.float16)\nwith ctx:\n    out = model(data[0])\nloss = out.float().sum()\n'
        "loss.backward()\noptimizer.step()\n",
        1,
        'ctx = torch.autocast("cuda", torch.float16)\nwith torch.no_grad(), ctx:\n    teacher = model(data[0])\n'
        + PLAIN,
    ),
    "backward in the region": (
        "backward-in-autocast",
        BFLOAT16 + LOSS + "    loss.backward()\noptimizer.step()\n",
        3,
        BFLOAT16 + LOSS + "loss.backward()\noptimizer.step()\n",
    ),
    "backward in a disabled region": (
        "backward-in-autocast",
        SCALER + FLOAT16 + LOSS + "    " + SCALED + END,
        4,
        BFLOAT16
        + LOSS
        + '    with torch.autocast("cuda", enabled=False):\n        loss.backward()\noptimizer.step()\n',
    ),
    "step in the region": (
        "step-in-autocast",
        BFLOAT16 + LOSS + "    optimizer.step()\nloss.backward()\n",
        3,
        BFLOAT16 + LOSS + "    scheduler.step()\nloss.backward()\noptimizer.step()\n",
    ),
    "EMA in the region": (
        "step-in-autocast",
        BFLOAT16 + LOSS + "    ema_model.update_parameters(model)\nloss.backward()\noptimizer.step()\n",
        3,
        BFLOAT16
        + LOSS
        + "    meter.update(loss)\nloss.backward()\noptimizer.step()\nema_model.update_parameters(model)\n",
    ),
    "scaler with bfloat16": (
        "scaler-with-bfloat16",
        SCALER + BFLOAT16 + LOSS + SCALED + END,
        1,
        'scaler = torch.amp.GradScaler("cuda", enabled=False)\n' + BFLOAT16 + LOSS + SCALED + END,
    ),
    "scaler of a dtype that is chosen": (
        "scaler-with-bfloat16",
        "scaler = torch.cuda.amp.GradScaler(enabled=True)\n" + BFLOAT16 + LOSS + SCALED + END,
        1,
        SCALER + "with torch.autocast('cuda', dtype=dtype):\n" + LOSS + SCALED + END,
    ),
    "clipping": (
        "clip-scaled-gradients",
        SCALER + FLOAT16 + LOSS + SCALED + "clip_grad_norm_(model.parameters(), 1.0)\n" + END,
        5,
        SCALER
        + FLOAT16
        + LOSS
        + SCALED
        + "scaler.unscale_(optimizer)\nclip_grad_norm_(model.parameters(), 1.0)\n"
        + END,
    ),
    "clipping in a function": (
        "clip-scaled-gradients",
        "def train(scaler, clip):\n    loss = model(data[0]).sum()\n    scaler.scale(loss).backward()\n    if clip:\n"
        "        nn.utils.clip_grad_value_(model.parameters(), 1.0)\n    scaler.step(optimizer)\n",
        5,
        "def train(scaler):\n    loss = model(data[0])\n    if args.fp16:\n        scaler.scale(loss).backward()\n"
        "    else:\n        loss.backward()\n        nn.utils.clip_grad_value_(model.parameters(), 1.0)\n",
    ),
    "update": (
        "scaler-update-missing",
        SCALER + FLOAT16 + LOSS + SCALED + "scaler.step(optimizer)\n",
        5,
        SCALER + FLOAT16 + LOSS + SCALED + "scaler.step(optimizer)\nfinish(scaler)\n",
    ),
    "half": (
        "half-weights-trained",
        "model.half()\n" + ADAM + PLAIN,
        1,
        "model.half()\nmodel.float()\n" + ADAM + PLAIN,
    ),
    "made half": (
        "half-weights-trained",
        "model = nn.Linear(4, 1).to(torch.bfloat16).cuda()\nmodel = torch.compile(model)\n" + ADAM + PLAIN,
        1,
        "teacher = nn.Linear(4, 1).to(torch.bfloat16)\nmodel = nn.Linear(4, 1)\n" + ADAM + PLAIN,
    ),
    "half in a branch": (
        "half-weights-trained",
        "if args.fp16:\n    model = model.half()\n" + ADAM + PLAIN,
        2,
        "if args.eval:\n    model = model.half()\nelse:\n    " + ADAM + PLAIN,
    ),
    "loaded in bfloat16": (
        "half-weights-trained",
        LOADED.format("", "torch_dtype=torch.bfloat16", ADAM),
        3,
        LOADED.format("", "torch_dtype=torch.float32", ADAM),
    ),
    "loaded as it is stored": (
        "half-weights-trained",
        LOADED.format("", 'dtype="auto"', ADAM),
        3,
        LOADED.format("", 'dtype="auto"', "model = model.float()\n" + ADAM),
    ),
    "new head": (
        "half-weights-trained",
        LOADED.format("", 'dtype="bfloat16"', ADAM.replace("model.", "model.body.")),
        3,
        LOADED.format("", 'dtype="bfloat16"', "model.head = nn.Linear(4, 1)\n" + ADAM.replace("model.", "model.head.")),
    ),
    "adapters": (
        "half-weights-trained",
        LOADED.format("", 'dtype="bfloat16"', ADAM),
        3,
        LOADED.format(
            "from peft import get_peft_model\n", 'dtype="bfloat16"', "model = get_peft_model(model)\n" + ADAM
        ),
    ),
}


#: What torch's own pages on AMP write, and common variants.
HEALTHY = {
    "two losses and optimizers": SCALER
    + FLOAT16
    + "    loss0, loss1 = model(data[0])\nscaler.scale(loss0).backward(retain_graph=True)\n"
    "scaler.scale(loss1).backward()\nscaler.unscale_(optimizer0)\nclip_grad_norm_(model.parameters(), 1.0)\n"
    "scaler.step(optimizer0)\nscaler.step(optimizer1)\nscaler.update()\n",
    "gradient penalty": SCALER
    + FLOAT16
    + LOSS
    + "grads = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)\n"
    + "grads = [grad / scaler.get_scale() for grad in grads]\n"
    + FLOAT16
    + "    loss = loss + sum(grad.pow(2).sum() for grad in grads)\n"
    + SCALED
    + END,
    "dtype and scaler are options": "ctx = nullcontext() if cpu else torch.amp.autocast('cuda', dtype=dtype)\n"
    "scaler = torch.cuda.amp.GradScaler(enabled=(name == 'float16'))\nwith ctx:\n"
    + LOSS
    + SCALED
    + "if clip:\n    scaler.unscale_(optimizer)\n    clip_grad_norm_(model.parameters(), clip)\n"
    + END,
    "half only to evaluate": "def main(args):\n    model = nn.Linear(4, 1)\n    if args.eval:\n        model.half()\n"
    "        return model(data[0])\n    optimizer = torch.optim.SGD(model.parameters(), lr=1)\n    loss.backward()\n",
    "masters by hand": "net = nn.Linear(4, 1).half()\nmasters = [p.detach().float() for p in net.parameters()]\n"
    "optimizer = torch.optim.SGD(masters, lr=len(list(net.parameters())))\nloss.backward()\n",
    "disabled scaler": 'scaler = torch.amp.GradScaler("cuda", enabled=False)\n'
    + SCALED
    + "clip_grad_norm_(model.parameters(), 1.0)\n"
    + END,
    "half inputs": "inputs = data[0].half()\nloss = model(inputs.float()).sum()\nloss.backward()\noptimizer.step()\n",
}


HEALTHY.update((f"without {name}", healthy) for name, (_, _, _, healthy) in CASES.items())


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_script_is_not_accused(tmp_path, capsys, case):
    found = {rule for rule, _ in rules(check(tmp_path, capsys, train=HEAD + HEALTHY[case]))}
    casts = case in ("without half", "without half in a branch")  # after HEAD has created an optimizer
    assert found == ({"cast-by-hand"} if casts else set())


@pytest.mark.parametrize("case", CASES)
def test_a_planted_fault_is_found_at_its_line(tmp_path, capsys, case):
    rule, planted, line, _ = CASES[case]
    report = check(tmp_path, capsys, train=HEAD + planted)
    assert (rule, HEAD.count("\n") + line) in rules(report)
    severities = {finding["rule"]: finding["severity"] for finding in report["findings"]}
    assert report["exit_code"] == ("warning" in severities.values())


def test_the_verdict_counts_what_was_found_without_apex(tmp_path, capsys):
    report = check(tmp_path, capsys, train=HEAD + CASES["explicit float16"][1])
    assert report["verdict"].startswith("Nothing of Apex is used here; 1 place to look at.")


def test_scripts_with_apex_have_other_rules(tmp_path, capsys):
    code = "from apex import amp\nmodel, optimizer = amp.initialize(model, optimizer)\n" + CASES["half"][1]
    assert "half-weights-trained" not in dict(rules(check(tmp_path, capsys, train=HEAD + code)))
